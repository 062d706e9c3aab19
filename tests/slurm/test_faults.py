"""A few faults between client and controller, on a real Slurm; ``benchmarks/faults.py`` makes thousands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import need_slurm
from tests.slurm.tool import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.long]

FLAWS = ("duplicates", "lost", "wrong_reports", "waits_ended_by_a_read_error", "no_job_said")


@pytest.mark.chosen
def test_a_handful_of_faults_breaks_no_promise(tmp_path: Path) -> None:
    need_slurm()
    figures = tmp_path / "faults.json"
    ended = subprocess.run(
        [sys.executable, "benchmarks/faults.py", "--short", "--trials", "2", "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(figures.read_text())["results"]
    assert results["failures"] == []
    ours = results["summary"]["slurmgpu"]
    assert {flaw: ours[flaw] for flaw in FLAWS} == dict.fromkeys(FLAWS, 0)
    assert ours["trials"] == 16
    assert ours["disturbed"] >= 10
    # The faults are real: the same ones make a loop of three tries submit a job more than once.
    assert results["summary"]["sbatch, 3 tries"]["duplicates"] == 2
