"""A short soak: a dozen kills, inside and outside of saves; `make soak` does hundreds. And a disk that is full."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import ROOT, RunFolder, clean_environment, has_fsdp2, new_run, same

pytestmark = pytest.mark.long

# Each write to it fails, as on a disk that is full.
FULL = Path("/dev/full")
if_there_is_one = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def soaked(tmp_path: Path, *amounts: str) -> dict[str, Any]:
    """What a short soak found; it ended well."""
    pytest.importorskip("pydantic", reason="the soak plans its jobs, which torch alone cannot")
    figures = tmp_path / "soak.json"
    command = [sys.executable, "benchmarks/soak.py", *amounts, "--short", "--pause", "0.005"]
    ended = subprocess.run(
        [*command, "--json", str(figures)],
        cwd=ROOT,
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results: dict[str, Any] = json.loads(figures.read_text())["results"]
    return results


@pytest.mark.timeout(900)
@pytest.mark.chosen
def test_a_dozen_kills_leave_no_trace(tmp_path: Path) -> None:
    """Losses in hex, parameters and samples are the undisturbed run's, over single and ddp, with workers."""
    results = soaked(tmp_path, "--kills", "12", "--damages", "2", "--flips", "40")
    assert results["kills"] >= 12
    assert results["failures"] == []
    assert results["steps_lost_by_kill"]["beyond_one_interval"] == 0
    assert results["steps_lost_by_signal"]["largest"] in (0, None)
    assert sum(results["damaged_checkpoints"].values()) == 2
    assert results["flipped_bits"] == {"flipped": 40, "taken_for_whole": 0}


@pytest.mark.timeout(900)
@pytest.mark.chosen
@pytest.mark.parametrize(
    "sharded", [["--strategy", "fsdp2", "--kinds", "averaged"], ["--strategy", "pipeline"]]
)
def test_a_few_kills_of_sharded_processes_leave_no_trace(tmp_path: Path, sharded: list[str]) -> None:
    """Weights, the optimizer's state and random states of each rank, in files of each rank, are the undisturbed run's."""
    if "fsdp2" in sharded and not has_fsdp2():
        pytest.skip("this torch has no FSDP2")
    results = soaked(tmp_path, "--kills", "4", "--damages", "1", "--flips", "20", *sharded)
    assert results["kills"] >= 2
    assert results["failures"] == []
    assert results["steps_lost_by_kill"]["beyond_one_interval"] == 0


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


@pytest.mark.chosen
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
        r"warning: checkpoint of step (\d+) failed .*No space left on device.* is checkpoints/step-(\d+)",
        ended.stdout,
    )
    assert failed == [("3", "2"), ("4", "2"), ("5", "2"), ("6", "2")]
    kept = sorted(path.name for path in (full.path / "kept").glob("step-*"))
    assert kept == ["step-10", "step-9"]
    undisturbed = new_run(tmp_path, "undisturbed")
    undisturbed.write("Restless", **settings)
    undisturbed.here()
    mine = torch.load(full.path / "kept" / "step-10" / "model.pt", weights_only=True)
    assert same(mine, undisturbed.parameters())
    assert full.losses() == undisturbed.losses()


@if_there_is_one
@pytest.mark.parametrize(
    ("settings", "fault", "code"),
    [
        ({"epochs": 0}, "", 2),
        ({}, "raise:3:0", 1),
        ({"task": "Leaving", "config": {"code": "that is enough"}}, "", 1),
        ({"task": "Leaving", "config": {"code": 3}}, "", 3),
        ({"task": "Leaving", "config": {"code": 0}}, "", 0),
        ({"task": "Leaving", "config": {"code": None}}, "", 0),
        ({"task": "Unsaved"}, "", 1),
        ({}, "SIGUSR1:3:0", 75),
    ],
)
def test_where_nothing_can_be_said_the_exit_code_says_it(
    run: RunFolder, settings: dict[str, Any], fault: str, code: int
) -> None:
    run.write(**{"batch_size": 20, **settings})
    assert run.ranks(log=FULL, SMALL_FAULT=fault).codes == [code]


@if_there_is_one
def test_a_preparation_that_nobody_hears_of_is_done_all_the_same(run: RunFolder) -> None:
    run.write()
    command = [sys.executable, "-m", "slurmgpu.training", "--prepare", str(run.path / "train.json")]
    with FULL.open("w") as full:
        environment = clean_environment(run.path) | {"PYTHONUNBUFFERED": "1"}
        ended = subprocess.run(command, env=environment, stdout=full, stderr=full, timeout=100)
    assert ended.returncode == 0


@if_there_is_one
def test_metrics_and_log_on_a_full_disk_cost_their_lines_and_no_step(tmp_path: Path) -> None:
    """Of two processes, which also stop for a signal as ever: their watches are alive."""
    settings = {"epochs": 2, "batch_size": 20, "lr": 0.05, "log_every": 1}
    undisturbed, full = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "full")
    undisturbed.write("Slow", **settings)
    assert undisturbed.ranks(2).codes == [0, 0]
    full.write("Slow", **settings)
    (full.path / "metrics.jsonl").symlink_to(FULL)
    assert full.ranks(2, log=FULL, SMALL_FAULT="SIGUSR1:3:1").codes == [75, 75]
    assert full.stop()["reason"] == "SIGUSR1"
    assert full.ranks(2, log=FULL).codes == [0, 0]
    assert full.checkpoints()[0] == "step-10"
    assert same(full.parameters(), undisturbed.parameters())
