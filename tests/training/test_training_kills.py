"""A short soak: a dozen kills, inside and outside of saves; `make soak` does hundreds. And a disk that is full."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .conftest import ROOT, clean_environment, new_run


@pytest.mark.timeout(900)
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
        timeout=850,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(figures.read_text())["results"]
    assert results["kills"] >= 12
    assert results["failures"] == []
    assert results["steps_lost_by_kill"]["beyond_one_interval"] == 0
    assert results["steps_lost_by_signal"]["largest"] in (0, None)


def own_mounts() -> list[str]:
    """The command after which a tmpfs can be mounted that ends with it; skips where there is none."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing: no small disk can be made to fill")
    command = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    tried = subprocess.run(
        [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, timeout=20
    )
    if tried.returncode:
        pytest.skip(f"no small disk can be made to fill: {tried.stderr.strip()}")
    return command


def test_a_disk_that_is_really_full_costs_checkpoints_and_not_the_training(tmp_path: Path) -> None:
    """A tmpfs of a few checkpoints, full from the third step to the seventh; each step is to be saved."""
    alone, full = own_mounts(), new_run(tmp_path, "full")
    settings = {"epochs": 2, "batch_size": 20, "lr": 0.05, "log_every": 1, "checkpoint_steps": 1}
    full.write("Filling", **settings)
    (full.path / "checkpoints").mkdir()
    script = (
        "mount -t tmpfs -o size=400k tmpfs checkpoints && "
        f'"{sys.executable}" -m slurmgpu.training && cp -r checkpoints kept'
    )
    ended = subprocess.run(
        [*alone, "sh", "-c", script],
        cwd=full.path,
        env=clean_environment(full.path),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    failed = re.findall(
        r"warning: checkpoint of step (\d+) failed .* is checkpoints/step-(\d+)", ended.stdout
    )
    assert failed == [("3", "2"), ("4", "2"), ("5", "2"), ("6", "2")]
    kept = sorted(path.name for path in (full.path / "kept").glob("step-*"))
    assert kept == ["step-10", "step-9"]
    undisturbed = new_run(tmp_path, "undisturbed")
    undisturbed.write("Restless", **settings)
    undisturbed.here()
    mine = torch.load(full.path / "kept" / "step-10" / "model.pt", weights_only=True)
    others = undisturbed.parameters()
    assert all(torch.equal(mine[name], others[name]) for name in others)
    assert full.losses() == undisturbed.losses()
