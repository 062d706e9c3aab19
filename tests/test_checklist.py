"""A training loop against the checklist: a missed point is named with its line, and nothing is said of what is right."""

from __future__ import annotations

import pytest

from slurmgpu.models.script_facts import Slip
from slurmgpu.planning.checklist import CHECKS, check_training_loop
from tests.check_examples import CHECKLIST, loop_with


def test_a_healthy_loop_misses_nothing() -> None:
    assert check_training_loop([("train.py", CHECKLIST["healthy"])]) == ()


@pytest.mark.parametrize("name", CHECKLIST["faults"])
def test_a_missed_point_is_named_with_its_line(name: str) -> None:
    changes = CHECKLIST["faults"][name]
    text = loop_with(changes)
    (line,) = (number for number, one in enumerate(text.splitlines(), 1) if changes[-1]["line"] in one)
    assert check_training_loop([("train.py", text)]) == (Slip(name, "train.py", line),)


def test_every_check_has_its_fault() -> None:
    assert list(CHECKLIST["faults"]) == list(CHECKS)


@pytest.mark.parametrize("name", CHECKLIST["right"])
def test_nothing_is_said_of(name: str) -> None:
    assert check_training_loop([("train.py", loop_with(CHECKLIST["right"][name]))]) == ()


def test_points_may_be_kept_in_another_file() -> None:
    text = CHECKLIST["healthy"]
    start, end = text.index("def evaluate"), text.index("def main")
    assert check_training_loop([("train.py", text[:start] + text[end:]), ("parts.py", text[start:end])]) == ()
    without = text[start:end].replace("    model.eval()\n", "")
    slips = check_training_loop([("train.py", text[:start] + text[end:]), ("parts.py", without)])
    assert [(one.check, one.file, one.line) for one in slips] == [("no-eval-mode", "parts.py", 5)]
