"""Every step safe on the real Slurm: a job that is killed and requeued on its two nodes loses no completed step."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(600)]

TASK = """\
import time

import torch
from torch import nn


class Slow:
    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        if split == "test":
            return None
        x = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        time.sleep(0.1)
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
"""


def rows(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    file = run_dir / "metrics.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in found if row["kind"] == kind]


def test_a_killed_and_requeued_job_resumes_after_its_last_step(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    tool = Tool(slurm, tmp_path)
    tool.file("slow.py", TASK)
    for node in ("node3", "node4"):
        (tmp_path / node).mkdir()  # this machine has one memory, and each of its nodes a folder
    tool.file(
        "job.yaml",
        f"""\
name: kept
resources: {{nodes: 2, gpus: 2, time: "10"}}
restart: {{on: [timeout]}}
sbatch: {{nodelist: "node[3-4]"}}
train: {{task: slow.py:Slow, max_steps: 25, batch_size: 4, log_every: 1, workers: 0, sanity: false, checkpoint_steps: 1,
  checkpoint_shared_steps: 1000, checkpoint_every: 1000, checkpoint_node_folder: "{tmp_path}/$SLURMD_NODENAME"}}
""",
    )
    job = tool.submit("job.yaml")
    wait_until(lambda: len(rows(job.run_dir, "train")) >= 5, seen=lambda: job.log)
    for rank in rows(job.run_dir, "start")[0]["values"]["ranks"]:
        os.kill(rank["pid"], signal.SIGKILL)
    tool.wait_for_state(job.job_id, "FAILED")
    completed = rows(job.run_dir, "train")[-1]["step"]
    assert not (job.run_dir / "checkpoints" / f"step-{completed}").exists()

    slurm.run(["scontrol", "requeue", str(job.job_id)]).check_returncode()
    slurm.run(["scontrol", "update", f"JobId={job.job_id}", "StartTime=now"])
    tool.wait_for_state(job.job_id, "COMPLETED")
    first, second = rows(job.run_dir, "start")
    assert (first["step"], second["restart"]) == (0, first["restart"] + 1)
    assert completed <= second["step"] <= completed + 1
    assert (
        f"step {second['step']} was kept on the nodes, and is now checkpoints/step-{second['step']}"
        in job.log
    )
    assert "25 steps" in job.log
