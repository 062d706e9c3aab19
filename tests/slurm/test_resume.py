"""`slurmgpu resume` on the real Slurm: a run goes on in its own directory, and never twice at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.sandbox_user import wait_until
from tests.slurm.tool import Tool

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

SLOW = """\
import time

import torch
from torch import nn


class Slow:
    def model(self, cfg):
        self.seconds = cfg.seconds
        return nn.Linear(3, 1)

    def dataset(self, cfg, split):
        if split == "test":
            return None
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        time.sleep(self.seconds)
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
"""

JOB = """\
name: slow
resources: {gpus: 1, time: "10"}
train: {task: slow.py:Slow, epochs: 12, batch_size: 4, log_every: 1, workers: 0, config: {seconds: 0.1}}
"""


def wait_for_text(path: Path, text: str) -> None:
    def said() -> str:
        return path.read_text() if path.exists() else ""

    wait_until(lambda: text in said(), seen=said)


@pytest.mark.long
@pytest.mark.chosen
def test_a_cancelled_training_goes_on_and_then_further(tool: Tool) -> None:
    tool.file("slow.py", SLOW)
    tool.file("job.yaml", JOB)
    first = tool.submit("job.yaml")
    wait_for_text(first.run_dir / "logs" / f"{first.job_id}.out", "epoch 1/12")
    cancelled = tool("cancel", str(first.job_id))
    promised = re.search(rf"`slurmgpu resume {first.job_id}` continues from step (\d+)", cancelled.stderr)
    assert promised, cancelled
    tool.wait_for_state(first.job_id, "CANCELLED")

    resumed = tool("resume", "--wait", str(first.job_id), "-t", "20")
    assert resumed.returncode == 0, resumed.stderr
    second = resumed.stdout.strip()
    log = (first.run_dir / "logs" / f"{second}.out").read_text()
    (step,) = re.findall(r"resuming from checkpoints/step-(\d+) ", log)
    assert int(step) >= int(promised[1]) > 0
    assert f"continues from step {step}" in resumed.stderr
    assert "done: 12 epochs" in log
    assert "--time=00:20:00" in (first.run_dir / "script.sbatch").read_text()
    # The run is its newest job, and its logs are those of both.
    assert [job["job_id"] for job in tool.status(str(first.run_dir))] == [second]
    assert tool("logs", "--path", str(first.run_dir)).stdout.splitlines() == [
        f"{first.run_dir}/logs/{job}.out" for job in (first.job_id, second)
    ]
    assert tool("logs", str(first.run_dir)).stdout.endswith(log)

    done = tool("resume", "slow")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing is left to do" in done.stderr
    further = tool("resume", "slow", "--set", "train.epochs=13", "--wait")
    assert further.returncode == 0, further.stderr
    log = (first.run_dir / "logs" / f"{further.stdout.strip()}.out").read_text()
    assert "resuming from checkpoints/step-120 " in log
    assert "done: 13 epochs, 130 steps" in log
    record = json.loads((first.run_dir / "run.json").read_text())
    assert [one["job_id"] for one in record["earlier"]] == [first.job_id, int(second)]
    assert record["job_id"] == int(further.stdout)


def test_a_run_whose_job_still_waits_is_not_started_again(tool: Tool) -> None:
    first = tool.submit("--gpus=1", "-t", "5", "--hold", "--", "true")
    before = (first.run_dir / "run.json").read_bytes()
    refused = tool("resume", str(first.job_id))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"job {first.job_id} of {first.run_dir} is held: JobHeldUser" in refused.stderr
    assert tool.jobs_here() == [str(first.job_id)]
    assert (first.run_dir / "run.json").read_bytes() == before
    tool("cancel", str(first.job_id))


def test_two_who_resume_at_the_same_moment_start_one_job(tool: Tool) -> None:
    first = tool.submit("--gpus=1", "-t", "5", "--wait", "--", "false")
    command = [sys.executable, "-m", "slurmgpu", "resume", "--hold", str(first.run_dir)]
    both = [
        subprocess.Popen(
            command, cwd=tool.work, env=tool.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=180) for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], said
    (job,) = tool.jobs_here()
    assert [out for out, _ in said if out] == [f"{job}\n"]
    tool("cancel", job)


def test_of_an_array_the_tasks_start_again_that_are_not_done(tool: Tool) -> None:
    script = 'echo "here"; [ "$SLURM_ARRAY_TASK_ID" != 2 ] || [ -e ready ]'
    first = tool.submit("--gpus=1", "-t", "5", "-a", "1-3", "--wait", "--", "bash", "-c", script)
    assert first.code == 1
    tool.file("ready", "")
    again = tool("resume", str(first.job_id), "--wait")
    assert again.returncode == 0, again.stderr
    job = again.stdout.strip()
    tool.slurm.wait_for(job, complete_row=True)  # accounting hears of the task later than the queue
    assert [one["job_id"] for one in tool.status(job)] == [f"{job}_2"]
    done = tool("resume", job)
    assert done.returncode == 1
    assert "nothing is left to do: all tasks of" in done.stderr
    (named,) = tool.status(tool("resume", job, "-a", "3", "--hold").stdout.strip())
    assert named["array_tasks"] in {"3", "[3]"}
    tool("cancel", str(named["array_job_id"]))
