"""A release of Slurm that cannot be had fails in CI, and is skipped elsewhere: it says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.parametrize(("ci", "code", "outcome"), [("true", 1, "1 error"), ("", 0, "1 skipped")])
def test_an_absent_release_fails_in_ci_and_else_skips_and_says_why(ci: str, code: int, outcome: str) -> None:
    test = "tests/slurm/test_throwaway.py::test_four_idle_nodes_have_four_gpus_each"
    env = {name: value for name, value in os.environ.items() if name != "SLURMGPU_REQUIRE_SLURM"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        cwd=Path(__file__).parents[1],
        env=env | {"SLURMGPU_TEST_RELEASES": "19.05", "CI": ci},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stdout
    assert outcome in done.stdout.splitlines()[-1]
    assert "no Debian suite is known for Slurm 19.05" in done.stdout
