"""What is said while it trains: one line that renews itself on a terminal, a plain line a minute in a log."""

from __future__ import annotations

import io
import os
import sys

import pytest

from slurmgpu.training.watching import console
from slurmgpu.training.watching.console import Console

from .conftest import RunFolder


class Terminal(io.StringIO):
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
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_has_one_line_that_renews_itself_and_fits(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(console.shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    speaker = Console(True)
    for text in ("step 1/3  12:34 min left", "step 2/3  5 s left"):
        clock[0] += 1
        speaker.progress(text)
    speaker.progress("too soon")
    assert screen.seen() == ["step 2/3  5 s left"]
    assert max(map(len, screen.getvalue().split("\r"))) == 19
    speaker.say("epoch 1/1")
    clock[0] += 1
    speaker.progress("step 3/3")
    assert screen.seen() == ["epoch 1/1", "step 3/3"]


def test_a_log_has_a_plain_line_a_minute(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    speaker = Console(True)
    for second in range(1, 181):
        clock[0] = float(second)
        speaker.progress(f"at {second}")
    assert capsys.readouterr().out == "at 60\nat 120\nat 180\n"


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    speaker = Console(False)
    clock[0] = 1000.0
    speaker.progress("at 1000")
    speaker.say("all")
    assert capsys.readouterr().out == ""


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
