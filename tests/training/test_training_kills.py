"""A short soak: a dozen kills, inside and outside of saves; `make soak` does hundreds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, clean_environment


@pytest.mark.timeout(240)
def test_a_dozen_kills_leave_no_trace(tmp_path: Path) -> None:
    """Losses in hex, parameters and samples are the undisturbed run's, over single and ddp, with workers."""
    figures = tmp_path / "soak.json"
    command = [sys.executable, "benchmarks/soak.py", "--kills", "12", "--short", "--pause", "0.005"]
    ended = subprocess.run(
        [*command, "--json", str(figures)],
        cwd=ROOT,
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(figures.read_text())["results"]
    assert results["kills"] >= 12
    assert results["failures"] == []
    assert results["steps_lost_by_signal"]["largest"] in (0, None)
