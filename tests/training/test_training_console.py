"""What is said while it trains: a bar on a terminal, a plain line a minute in a log."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

import pytest

from slurmgpu.training.evaluation import Evaluation
from slurmgpu.training.watching import console
from slurmgpu.training.watching.console import Bar, Console, clock

from .conftest import RunFolder

FACTS = ["loss 0.123", "1,234 samples/s", "accuracy 0.9"]


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True

    def seen(self) -> list[str]:
        """What stands on the screen: a carriage return goes back, and what follows covers what was there."""
        rows = []
        for row in self.getvalue().split("\n"):
            shown = ""
            for text in row.split("\r"):
                shown = text + shown[len(text) :]
            rows.append(shown.rstrip())
        return rows


@pytest.fixture
def clock_now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 60 columns, to which both streams go."""
    screen = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((60, 24)))
    return screen


def bar(step: int, facts: list[str] = FACTS) -> Bar:
    return Bar(step, 200, 62.0, 3600.0, "epoch 1/2  ", facts)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (200, f"epoch 1/2   25%|{'█' * 10:40}| 50/200 [1:02<1:00:00, loss 0.123, 1,234 samples/s, accuracy 0.9]"),
        (80, "epoch 1/2   25%|███         | 50/200 [1:02<1:00:00, loss 0.123, 1,234 samples/s]"),
        (60, "epoch 1/2   25%|██▎      | 50/200 [1:02<1:00:00, loss 0.123]"),
        (40, "epoch 1/2   25% 50/200 [1:02<1:00:00]"),
        (25, "epoch 1/2   25% 50/200"),
        (10, "50/200"),
        (3, "50/"),
    ],
)  # fmt: skip
def test_a_bar_fits_and_the_loss_is_the_last_fact_to_go(width: int, line: str) -> None:
    assert bar(50).line(width) == line


def test_a_bar_has_all_that_is_known_and_ascii_where_there_is_no_other() -> None:
    assert Bar(1, 3, 0.4).line(40, unicode=False) == f" 33%|{'#' * 7:21}| 1/3 [0:00<?]"
    assert Bar(3, 3, 59.9, 0.0).line(40) == f"100%|{'█' * 18}| 3/3 [0:59<0:00]"
    assert [clock(seconds) for seconds in (0.9, 61, 3600, 90061)] == ["0:00", "1:01", "1:00:00", "25:01:01"]


def test_a_terminal_has_one_bar_that_is_renewed_below_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    speaker = Console(True)
    for step in (1, 2):
        speaker.draw(bar(step))
    assert screen.seen() == [bar(2).line(59)]
    assert not speaker.draws(2)
    speaker.say("epoch 1/2")
    assert speaker.draws(2), "it is gone, and comes again"
    speaker.draw(bar(2))
    speaker.close()
    print("an error", file=sys.stderr)
    assert screen.seen() == ["epoch 1/2", bar(2).line(59), "an error", ""]
    assert not speaker.due(), "no lines of a log"


def test_what_a_task_prints_breaks_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    speaker = Console(True)
    speaker.open()
    speaker.draw(bar(1))
    print("from", "the task", file=sys.stderr)
    speaker.draw(bar(2))
    print("(Pdb) ", end="")
    assert not speaker.draws(3), "somebody is at the middle of a line"
    print("c")
    assert speaker.draws(3)
    speaker.close()
    assert screen.seen() == ["from the task", "(Pdb) c", ""]
    assert (sys.stdout, sys.stderr) == (screen, screen)


def test_what_a_task_prints_on_another_rank_takes_the_bar_away_too(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    speaker, other = Console(True), Console(False)
    speaker.draw(bar(1))
    other.open()
    print("from", "rank 1")
    other.close()
    assert screen.getvalue().endswith("\r\x1b[Kfrom rank 1\n")
    speaker.draw(bar(2))
    assert screen.seen()[-1] == bar(2).line(59)


def test_a_log_has_a_plain_line_a_minute(capsys: pytest.CaptureFixture[str], clock_now: list[float]) -> None:
    speaker = Console(True)
    for second in range(1, 181):
        clock_now[0] = float(second)
        speaker.progress(f"at {second}")
    assert capsys.readouterr().out == "at 60\nat 120\nat 180\n"
    assert not speaker.draws(1)


def test_stderr_has_the_bar_if_stdout_is_a_file(
    monkeypatch: pytest.MonkeyPatch, clock_now: list[float]
) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    speaker = Console(True)
    speaker.draw(bar(1))
    clock_now[0] = 61.0
    speaker.progress("at 61")
    assert screen.seen() == [bar(1).line(59)]
    assert sys.stdout.getvalue() == "at 61\n"


def test_a_terminal_without_cursor_has_plain_lines(
    monkeypatch: pytest.MonkeyPatch, clock_now: list[float]
) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    speaker = Console(True)
    clock_now[0] = 61.0
    speaker.progress("at 61")
    assert not speaker.draws(1)
    assert screen.getvalue() == "at 61\n"


def test_a_terminal_shows_steps_and_then_plain_lines(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, evaluate, wanted = terminal(monkeypatch), Evaluation.run, iter(("| 2/4 [0:", "| 4/4 [0:"))

    def once_it_is_seen(self: Evaluation, model: Any) -> Any:
        until, text = time.monotonic() + 60, next(wanted)
        while text not in screen.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        assert text in screen.getvalue()
        return evaluate(self, model)

    monkeypatch.setattr(Evaluation, "run", once_it_is_seen)
    run.write(epochs=2, batch_size=50, log_every=1)
    run.here()
    assert "\repoch 2/2  100%|" in screen.getvalue()
    ended = [row for row in screen.seen() if not row.startswith("note: ")][-4:]
    assert [row[:12] for row in ended] == ["epoch 1/2  s", "epoch 2/2  s", "done: 2 epoc", ""]


def test_the_time_left_counts_the_evaluations_to_come(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five epochs of two short steps, with evaluations of 0.3 s: after the second, 3 of them are left."""
    monkeypatch.setattr(console, "_LOG_INTERVAL", 0.0)
    run.write("SlowTests", epochs=5, batch_size=50, log_every=1)
    run.here()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith("left")]
    assert lines[-1].startswith("epoch 5/5  step 10/10  loss ")
    (after,) = [line for line in lines if "step 5/10" in line]
    left = float(after.removesuffix(" s left").rpartition("  ")[2])
    evaluation = run.metrics("eval")[1]["values"]["seconds"]
    steps = sum(line["values"]["step_seconds"] for line in run.metrics("train")[:5])
    assert 3 * evaluation - 0.1 <= left <= 3 * evaluation + 5 * steps + 0.1
