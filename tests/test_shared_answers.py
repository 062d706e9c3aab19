"""Commands that only look share what Slurm said: ten of them cost what one does, and none shows what is old."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmgpu.cli import options
from slurmgpu.cli.group import cli
from slurmgpu.slurm import Slurm, even, shelf_here
from slurmgpu.slurm import shelf as shelf_module
from tests import test_report
from tests.present import Recorded, jobs_of
from tests.recorded import Replay
from tests.test_slurm_shelf import Clock
from tests.test_why import Whole, status_row

NUMBER = jobs_of("22.05")["Resources"]


def waiting() -> Recorded:
    return Whole(status_row(NUMBER, Reason="Resources"))


def accounting() -> Replay:
    rows = [
        test_report.row("7", begin=datetime.now(timezone.utc) - timedelta(hours=3)),
        test_report.steps("7"),
    ]
    run = test_report.slurm(rows).run
    assert isinstance(run, Replay)
    return run


LOOKS = {
    "why": (["why", str(NUMBER)], waiting),
    "cluster gpus": (["cluster", "gpus"], waiting),
    "report JOB": (["report", "7"], accounting),
    "report": (["report", "--since", "1d"], accounting),
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[list[str], list[object]]]:
    """How a command is run by a process of its own, and what all of them together have asked."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SLURMGPU_SITE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)

    def prepare(name: str) -> tuple[list[str], list[object]]:
        words, make = LOOKS[name]
        run = make()
        all_asked: list[object] = []

        def counted(argv: object, **how: object) -> object:
            all_asked.append(argv)
            return run(argv, **how)  # type: ignore[arg-type]

        def process(*_: object) -> Slurm:
            return Slurm(run=counted, env={"SLURM_CONF": "/nowhere"}, shelf=shelf_here())  # type: ignore[arg-type]

        monkeypatch.setattr(options, "shared", process)
        return words, all_asked

    return prepare


def look(words: list[str]) -> str:
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def figures(shown: str) -> list[str]:
    """What is told, but for the moment, and how an estimate moved since the last look."""
    return [line for line in shown.splitlines()[1:] if "Slurm expects" not in line]


@pytest.mark.parametrize("name", LOOKS)
def test_ten_that_look_cost_slurm_what_one_does(
    name: str, asked: Callable[[str], tuple[list[str], list[object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    words, calls = asked(name)
    first = look(words)
    alone = len(calls)
    assert alone
    for _ in range(9):
        clock.pass_(0.1)
        assert figures(look(words)) == figures(first)
    assert len(calls) == alone
    clock.pass_(2.0)
    look(words)
    assert len(calls) == 2 * alone


@pytest.mark.parametrize("name", LOOKS)
def test_an_answer_of_another_process_says_how_old_it_is(
    name: str, asked: Callable[[str], tuple[list[str], list[object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    words, calls = asked(name)
    assert "ago)" not in look(words)
    alone = len(calls)
    monkeypatch.setattr(options, "shared", _patient(options.shared))
    clock.pass_(40)
    assert "(40 s ago)" in look(words).splitlines()[0]
    assert json.loads(look([*words, "--json"]))["age_seconds"] == 40
    assert len(calls) == alone


def _patient(process: Callable[[], Slurm]) -> Callable[..., Slurm]:
    """The same where the site wants nobody to ask twice in a minute."""

    def made(*_: object) -> Slurm:
        slurm = process()
        slurm.shelf.floor = 60.0
        return slurm

    return made


def test_what_shows_is_shared_and_what_changes_is_not() -> None:
    assert shelf_module.only_reads(["sacctmgr", "-nP", "show", "qos"])
    assert shelf_module.only_reads(["scontrol", "--oneliner", "show", "node"])
    for argv in (
        ["sbatch", "--test-only", "x"],
        ["scontrol", "hold", "7"],
        ["sacctmgr", "-i", "add", "user", "show-off"],
    ):
        assert not shelf_module.only_reads(argv)


def test_two_who_ask_one_after_the_other_ask_the_same_and_are_told_no_more_than_they_asked_for(
    asked: Callable[[str], tuple[list[str], list[object]]],
) -> None:
    noon = datetime(2026, 11, 21, 12, 7, 31, tzinfo=timezone.utc)
    assert even(noon) == even(noon + timedelta(seconds=100)) == noon.replace(minute=0, second=0)
    asked("report")
    assert "train" in look(["report", "--since", "1d"])
    assert (
        look(["report", "--since", "1m"]) == ""
    )  # it ended two hours ago; accounting is asked from earlier on
