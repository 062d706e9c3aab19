"""The comparisons of benchmarks/ with a real Slurm still run: a small sample of each, on one twin of a few nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import need_slurm

pytestmark = [pytest.mark.slurm, pytest.mark.long]

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("agreement.py", "6 requests, 6 agree (100.00%)"),
        ("allocation.py", "6 asked for, 6 as the plan said, 0 not, 0 did not end well"),
    ],
)
def test_the_plan_is_held_against_a_real_slurm(name: str, says: str) -> None:
    need_slurm()
    command = [sys.executable, str(BENCHMARKS / name), "archer2-gpu", "--requests", "6", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout, done.stdout + done.stderr
