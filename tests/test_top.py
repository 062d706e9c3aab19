"""``slurmgpu top``: what it shows, what its keys do, and what they never do; Slurm's answers are made up."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual import events
from textual.color import Color
from textual.pilot import Pilot
from textual.widgets import DataTable, Input

from slurmgpu.cli import live_source
from slurmgpu.jobs import look as status_module
from slurmgpu.jobs.live import Source
from slurmgpu.jobs.look import StatusReport
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.text import Answer
from slurmgpu.top.app import Top
from slurmgpu.top.jobs import JobsScreen
from slurmgpu.top.text import chart
from tests.recorded import said
from tests.test_jobs_status import NOW, job

SILENT = said("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1)
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\u202e\u4f60\u597d"
JOBS = [
    job("11", "PENDING", name="waits", user="me", reason="Priority", gpus=8, partition="gpu"),
    job("12", "RUNNING", name=HOSTILE, user="me", gpus=4, partition="gpu", elapsed=90),
    job("13", "RUNNING", name="theirs", user="bob", gpus=1, partition="gpu"),
    job("14", "FAILED", name="broke", user="me", exit_code=3, partition="cpu", raw_id=14),
    job("15", "PENDING", name="held", user="me", reason="JobHeldUser", partition="gpu"),
    *(
        job(f"16_{n}", "RUNNING", name="sweep", user="me", array_job_id=16, array_tasks=str(n))
        for n in range(3)
    ),
]


class Fake:
    """Slurm's answers as the source has them, and all that was asked of Slurm to change."""

    def __init__(self, jobs: Sequence[Any] = tuple(JOBS)) -> None:
        self.jobs, self.silent, self.looks = list(jobs), False, 0
        self.asked: list[list[str]] = []
        self.resumed: list[str] = []

    def run(self, argv: Sequence[str], **_: Any) -> Answer:
        self.asked.append(list(argv))
        return said()

    def resume(self, word: str) -> tuple[bool, str]:
        self.resumed.append(word)
        return True, "job 99 on cluster alpha"

    def source(self) -> Source:
        slurm = Slurm(run=self.run, env={"SLURM_CONF": "/nowhere"})  # type: ignore[arg-type]
        return Source(slurm, slurm, "me", lambda _: None, lambda _: None, {}, self.resume, pace=3600.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    made = Fake()

    def status(slurm: Slurm, **_: Any) -> StatusReport:
        made.looks += 1
        if made.silent:
            from slurmgpu.errors import SlurmUnreachable

            raise SlurmUnreachable("Slurm's controller does not answer")
        return StatusReport("alpha", NOW, list(made.jobs), [])

    monkeypatch.setattr("slurmgpu.jobs.live.status", status)
    monkeypatch.setattr("slurmgpu.jobs.live.last_known", lambda *_, **__: None)
    monkeypatch.setattr("slurmgpu.jobs.cancel.status", status)
    monkeypatch.setattr(status_module, "status", status)
    monkeypatch.setattr(Slurm, "queue", lambda *_, **__: ([], []))
    return made


def text_of(app: Top) -> str:
    """What is on the screen now."""
    width, height = app.size
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join(strip.text[:width].rstrip() for strip in strips[:height])


def words_of(app: Top) -> str:
    """The same without frames, and with a single blank where lines are folded."""
    return " ".join(text_of(app).replace("│", " ").split())


def drive(
    fake: Fake, steps: Callable[[Top, Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> None:
    async def go() -> None:
        app = Top(fake.source(), JobsScreen())
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.seen is not None or bool(app.trouble))
            await steps(app, pilot)

    asyncio.run(go())


async def until(pilot: Pilot[None], so: Callable[[], bool]) -> None:
    for _ in range(6000):
        await pilot.pause()
        if so():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"it did not come to be:\n{text_of(pilot.app)}")  # type: ignore[arg-type]


async def to(pilot: Pilot[None], job_id: str) -> None:
    """Put the cursor on a job."""
    screen: Any = pilot.app.screen
    row = next(n for n, line in enumerate(screen.lines) if line.job.job_id == job_id)
    screen.query_one(DataTable).move_cursor(row=row)
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (50, 12)])
def test_every_job_has_its_line_and_all_fits_the_terminal(fake: Fake, size: tuple[int, int]) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        shown = text_of(app)
        assert len(shown.splitlines()) <= size[1]
        listed = (
            ("11", "12", "13", "14", "15", "16", "PENDING", "FAILED")
            if size[1] > 10
            else ("16", "14", "RUNN")
        )
        for word in listed:
            assert word in shown
        assert app.screen.query_one(DataTable).max_scroll_x == 0
        assert "? help  q quit" in shown
        assert "16_1" not in shown
        await pilot.press("t")
        assert "16_1" in text_of(app) or size[1] < 15

    drive(fake, steps, size)


def test_on_a_narrow_terminal_details_are_one_below_the_other_and_the_way_back_is_said(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, "13")
        await pilot.press("enter")
        await until(pilot, lambda: "q back" in text_of(app))
        assert "  partition  gpu\n  GPUs       1\n" in text_of(app)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "R resume  q back" in text_of(app))
        (first,) = (line for line in text_of(app).splitlines() if "partition" in line)
        assert first.split() == ["partition", "gpu", "GPUs", "1"]

    drive(fake, steps, (60, 20))


def test_hostile_names_are_spelled_out_and_styles_in_them_are_text(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, "12")
        await pilot.press("enter")
        await until(pilot, lambda: "No progress is known" in text_of(app))
        shown = text_of(app)
        assert "\x1b" not in shown
        assert "\\x1b[2J" in shown
        assert "[bold red]x[/]" in shown
        await pilot.press("C")
        await pilot.pause()
        assert "\\x1b]0;owned" in text_of(app)

    drive(fake, steps, (120, 40))


def test_only_y_cancels_and_the_question_names_the_job(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, "11")
        for no in ("n", "escape", "enter", "q"):
            await pilot.press("C")
            assert "Cancel job 11 (waits), PENDING?" in text_of(app)
            await pilot.press(no)
            assert "Cancel job" not in text_of(app)
        assert fake.asked == []
        await pilot.press("C", "y")
        await until(pilot, lambda: ["scancel", "11"] in fake.asked)
        await until(pilot, lambda: fake.looks >= 3)  # cancel looks itself, and the list anew

    drive(fake, steps)


def test_somebody_elses_job_is_not_even_asked_about(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, "13")
        for key in "CHUQR":
            await pilot.press(key, "y")
            assert "only jobs of yours" in words_of(app)
        assert (fake.asked, fake.resumed) == ([], [])

    drive(fake, steps)


@pytest.mark.parametrize(
    ("job_id", "key", "asked"),
    [
        ("11", "H", ["scontrol", "uhold", "11"]),
        ("15", "U", ["scontrol", "release", "15"]),
        ("12", "Q", ["scontrol", "requeue", "12"]),
        ("16", "Q", ["scontrol", "requeue", "16"]),
    ],
)
def test_hold_release_and_requeue_ask_slurm_once(fake: Fake, job_id: str, key: str, asked: list[str]) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, job_id)
        await pilot.press(key, "y")
        await until(pilot, lambda: fake.looks >= 2)
        assert fake.asked == [asked]

    drive(fake, steps)


@pytest.mark.parametrize(("job_id", "key"), [("16", "H"), ("11", "U"), ("11", "Q"), ("16", "R"), ("14", "C")])
def test_what_a_job_in_its_state_cannot_do_is_said_and_not_asked(fake: Fake, job_id: str, key: str) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, job_id)
        await pilot.press(key, "y")
        assert "cannot be asked to" in words_of(app)
        assert fake.asked == []

    drive(fake, steps)


def test_resume_is_asked_once_after_a_yes_for_the_run_of_the_job(fake: Fake, tmp_path: Path) -> None:
    class Found:
        run_dir = str(tmp_path)

        def as_of(self, _number: int) -> Any:
            return self

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        app.source.find_run = lambda _: Found()  # type: ignore[assignment,return-value]
        await to(pilot, "14")
        await pilot.press("R")
        assert "Resume job 14 (broke), FAILED?" in text_of(app)
        await pilot.press("y")
        await until(pilot, lambda: "job 99 on cluster alpha" in words_of(app))
        assert (fake.resumed, fake.asked) == ([str(tmp_path)], [])

    drive(fake, steps)


def test_a_filter_finds_by_every_word_and_escape_shows_all(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"running", "space", *"swe", "enter")
        table = app.screen.query_one(DataTable)
        assert table.row_count == 1
        assert table.has_focus
        await pilot.press("escape")
        assert table.row_count == 6
        assert app.screen.query_one(Input).value == ""
        before = text_of(app)
        await pilot.press("s")
        assert text_of(app) != before

    drive(fake, steps)


def test_what_is_typed_faster_than_the_screen_follows_is_the_filter_and_no_command(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        for key in ("slash", *"again", "slash", "enter"):
            app.post_message(events.Key(key, "/" if key == "slash" else key))
        await until(pilot, lambda: "filter: again/" in text_of(app))
        assert isinstance(app.screen, JobsScreen)
        assert app.screen.query_one(DataTable).has_focus

    drive(fake, steps)


def test_the_cursor_stays_on_its_job_when_others_come_and_go(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await to(pilot, "12")
        fake.jobs = [job("20", "PENDING", name="new", user="me"), *JOBS[1:]]
        await pilot.press("r")
        await until(pilot, lambda: "new" in text_of(app))
        screen: Any = app.screen
        assert screen.line.job.job_id == "12"

    drive(fake, steps)


def test_while_slurm_is_silent_the_last_state_is_shown_with_its_age_and_in_doubt(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        fake.silent = True
        await pilot.press("r")
        await until(pilot, lambda: "SLURM DOES NOT ANSWER" in text_of(app))
        assert "RUNNING?" in text_of(app)
        fake.silent = False
        await pilot.press("r")
        await until(pilot, lambda: "RUNNING?" not in text_of(app))
        assert "DOES NOT ANSWER" not in text_of(app)

    drive(fake, steps, (110, 24))


def test_where_slurm_never_answered_that_is_said_and_q_leaves(fake: Fake) -> None:
    fake.silent = True

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        assert "does not answer" in text_of(app)
        await pilot.press("q")

    drive(fake, steps)


def test_nobody_looks_at_the_jobs_while_help_or_gpus_are_shown(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        looks = fake.looks
        await pilot.press("question_mark")
        assert "follow its logs" in text_of(app)
        app._look_again()
        await pilot.pause()
        assert fake.looks == looks
        await pilot.press("escape")
        app._look_again()
        await until(pilot, lambda: fake.looks == looks + 1)

    drive(fake, steps)


def test_on_a_narrow_terminal_each_key_of_the_help_has_a_line_of_its_own(fake: Fake) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        lines = [line.strip() for line in text_of(app).splitlines()]
        assert "l  follow its logs" in lines
        assert "g  GPUs that are free, by partition" in lines

    drive(fake, steps, (50, 24))


def test_logs_are_followed_and_steer_nothing(fake: Fake, tmp_path: Path) -> None:
    log = tmp_path / "a.out"
    log.write_bytes(
        b"\x1b[31mred\x1b[0m \x1b[2J\x1b]0;owned\x07 [bold]plain[/bold]\n50%\r99%\n\xff\xfe\0end\n"
    )
    fake.jobs = [job("12", "RUNNING", name="mine", user="me", stdout=str(log), work_dir=str(tmp_path))]

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("l")
        await until(pilot, lambda: "end" in text_of(app))
        shown = text_of(app)
        assert "red \\x1b[2J" in shown
        assert "[bold]plain[/bold]" in shown
        assert "99%" in shown
        assert "50%" not in shown
        assert "\x1b" not in shown
        with log.open("a") as file:
            file.write("and more\n")
        await until(pilot, lambda: "and more" in text_of(app))
        await pilot.press("escape")
        assert "RUNNING" in text_of(app)

    drive(fake, steps)


def test_a_file_that_cannot_be_read_is_said_and_looked_at_again(fake: Fake, tmp_path: Path) -> None:
    fake.jobs = [job("12", "RUNNING", name="mine", user="me", stdout=str(tmp_path / "a.out"))]
    (tmp_path / "a.out").write_text("hello\n")

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        logs_of, app.source.logs = app.source.logs, locked  # type: ignore[method-assign]
        await pilot.press("l")
        await until(pilot, lambda: "Permission denied" in words_of(app))
        app.source.logs = logs_of  # type: ignore[method-assign]
        app._tick()
        await until(pilot, lambda: "hello" in text_of(app))

    def locked(_job: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/a.out")

    drive(fake, steps)


def test_details_show_the_curve_of_the_loss_and_what_is_not_known_as_such(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text("{}")
    rows = [
        {"schema": "slurmgpu.metrics/1", "time": 1.0 + n, "restart": 0, "rank": 0, "step": n, "kind": "train",
         "values": {"loss": 5.0 - n / 10}} for n in range(1, 40)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = job("12", "RUNNING", user="me", name="mine", raw_id=12, script=f"{tmp_path}/script.sbatch", gpus=1)
    fake.jobs = [mine]

    class Found:
        run_dir = str(tmp_path)

        def as_of(self, _number: int) -> Any:
            return self

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        app.source.find_run = lambda _: Found()  # type: ignore[assignment,return-value]
        await pilot.press("enter")
        await until(pilot, lambda: "loss, steps 1 to 39" in text_of(app))
        shown = text_of(app)
        assert "█" in shown
        assert "GPU use is not known" in shown
        assert "plan.json cannot be read" in " ".join(shown.split())

    drive(fake, steps, (120, 50))


def test_thousands_of_jobs_are_a_table_that_a_filter_searches_whole(fake: Fake) -> None:
    fake.jobs = [job(str(n), "PENDING", name=f"n{n}", user="me") for n in range(1, 3001)]

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        assert "500 of 3000 lines" in text_of(app)
        await pilot.press("slash", *"n77", "enter")
        assert app.screen.query_one(DataTable).row_count == 11

    drive(fake, steps)


def test_with_no_color_the_cursor_is_still_seen(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "FAILED" in text_of(app))
        styles = []
        for strip in app.screen._compositor.render_strips(app.size):
            for one in app.get_line_filters():
                strip = strip.apply_filter(one, Color(0, 0, 0))
            styles += [segment.style for segment in strip if segment.style]
        assert {str(one.name) for style in styles for one in (style.color, style.bgcolor) if one} <= {
            "default"
        }
        assert any(style.reverse for style in styles)

    drive(fake, steps)


def test_a_chart_is_as_wide_and_high_as_asked_and_shows_least_and_most() -> None:
    assert chart([], 10) == []
    assert chart([0, 1, 2, 3, 4, 5, 6, 7, 8], 9) == ["▁▁▂▃▄▅▆▇█"]
    rows = chart(range(100), 20, 3)
    assert [len(row) for row in rows] == [20, 20, 20]
    assert (rows[0][0], rows[-1][0], rows[0][-1]) == (" ", "▁", "█")
    assert chart([0.5], 5, low=0, high=1) == ["▄"]
    assert chart([7, 7], 5) == ["▁▁"]


def test_without_a_terminal_the_command_names_another_and_textual_is_not_even_imported() -> None:
    code = "import sys; sys.argv = ['slurmgpu', 'top']; from slurmgpu.cli import main\n"
    code += "try: main()\nfinally: print('textual' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (1, "False"), done
    assert "slurmgpu status --watch" in done.stderr


def test_the_pictures_in_the_docs_are_what_it_shows(tmp_path: Path) -> None:
    pictures = Path(__file__).resolve().parent.parent / "docs" / "pictures"
    subprocess.run([sys.executable, pictures / "top.py", tmp_path], check=True)
    made = sorted(tmp_path.glob("*.svg"))
    assert [one.name for one in made] == sorted(one.name for one in pictures.glob("top-*.svg"))
    for one in made:
        assert one.read_bytes() == (pictures / one.name).read_bytes(), (
            f"python docs/pictures/top.py ({one.name})"
        )
        assert not any(word in one.read_text() for word in ("@font-face", "url(http", "/root/", "/tmp/"))


def test_a_run_that_ends_after_its_folder_was_read_is_found_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ended = [100.0], set[str]()

    def read(_: object) -> Callable[[Any], Any]:
        there = set(ended)
        return lambda job: job.job_id if job.job_id in there else None

    monkeypatch.setattr(live_source, "runs_that_ended", read)
    monkeypatch.setattr(live_source, "time", SimpleNamespace(monotonic=lambda: now[0]))
    runs = live_source.KnownRuns()
    assert runs.quick(job("1", "FAILED")) is None
    now[0] += 5
    ended.add("2")
    assert runs.quick(job("2", "FAILED")) is None  # the folder is not read so soon again
    now[0] += 30
    assert runs.quick(job("2", "FAILED")) == "2"  # type: ignore[comparison-overlap]
    ended.add("1")
    now[0] += 30
    assert runs.quick(job("1", "FAILED")) is None  # it was looked for after its end, and has none
