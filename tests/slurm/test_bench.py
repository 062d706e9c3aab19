"""`slurmgpu bench --submit` on a real Slurm: a job for each place, gathered, one of them lost; two nodes; the next job file."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long]

TASK = """\
import time

import torch

class Toy:
    def model(self, cfg):
        return torch.nn.Linear(4, 1)

    def dataset(self, cfg, split):
        return Slow() if split == "train" else None

    def loss(self, model, batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4), torch.ones(1)
"""
JOB = """\
# mine
resources: {gpus: 2}
train: {task: 'task.py:Toy', batch_size: 16, workers: 0}  # slow to load
"""


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    tool = Tool(slurm, tmp_path)
    tool.file("task.py", TASK)
    tool.file("job.yaml", JOB)
    return tool


def shown(tool: Tool, folder: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = tool("bench", "show", folder, "--json", *options)
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def test_nodes_are_measured_in_jobs_of_their_own_and_the_one_that_was_lost_is_named(tool: Tool) -> None:
    tool.slurm.run(["scontrol", "update", "nodename=node3", "state=drain", "reason=test"])
    try:
        done = tool("bench", "node", "--submit", "-w", "node[1-3]", "-t", "10:00", "--folder", str(tool.work))
        folder = done.stdout.strip()
        assert (done.returncode, Path(folder).is_dir()) == (0, True), done
        (waiting,) = [
            job
            for job in tool.jobs_here()
            if "node3" in tool.slurm.run(["squeue", "-hj", job, "-o", "%n"]).stdout
        ]
        code, early = shown(tool, folder)
        assert (code, [one["on"] for one in early["jobs"]]) == (1, ["node1", "node2", "node3"])
        assert tool("cancel", waiting).returncode == 0
        said = tool("bench", "show", folder, "--wait")
        assert said.returncode == 1
        assert (
            f"node3: nothing was measured (job {waiting}: CANCELLED, cancelled by you, before it started)."
            in said.stdout
        )
        code, late = shown(tool, folder)
    finally:
        tool.slurm.run(["scontrol", "update", "nodename=node3", "state=resume"])
    assert (code, [one["whole"] for one in late["jobs"]]) == (1, [True, True, False])
    for one in late["jobs"][:2]:
        assert one["machine"]["node"] == one["on"]
        assert {row["what"] for row in one["rows"]} == {"product", "copy", "folder"}  # of one CPU
    with Path(folder, "table.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head[:3] == ["On", "What", "Where"]
    assert {line[0] for line in lines} == {"node1", "node2"}
    assert "node3: nothing was measured" in Path(folder, "page.html").read_text()


def test_sums_over_processes_are_measured_within_a_node_and_between_two(tool: Tool) -> None:
    options = [
        "--submit", "--nodes", "2", "-t", "10:00", "--set", "resources.cpus_per_task=2", "--wait", "--json",
    ]  # fmt: skip
    done = tool("bench", "node", *options)
    assert done.returncode == 0, done
    (one,) = json.loads(done.stdout)["jobs"]
    rows = [row for row in one["rows"] if row["what"] == "reduction"]
    assert [(row["processes"], row["nodes"]) for row in rows] == [(2, 1)] * 2 + [(4, 2)] * 2, one["rows"]
    assert all(row["gb_per_s"]["least"] > 0 for row in rows), rows


def test_a_training_is_tried_on_one_node_and_on_two_and_nothing_of_a_try_is_left(tool: Tool) -> None:
    options = [
        "--submit", "--gpus", "4", "--nodes", "2", "--processes", "1,2", "--seconds", "0.5", "-t", "10:00",
    ]  # fmt: skip
    done = tool(
        "bench",
        "task",
        "job.yaml",
        "--part",
        "scaling",
        *options,
        "--set",
        "train.device=cpu",
        "--wait",
        "--json",
    )
    assert done.returncode == 0, done
    (one,) = json.loads(done.stdout)["jobs"]
    rows = [row for row in one["rows"] if row["what"] == "scaling" and row["how"] == "each"]
    assert [(row["processes"], row["nodes"]) for row in rows] == [(1, 1), (2, 1), (4, 2)], one
    assert all(row.get("samples_per_second", 0) > 0 for row in rows), rows
    assert all(row["step_seconds_apart"] > 0 for row in rows[1:]), rows  # it was tried without communication
    sharded = [row for row in one["rows"] if row.get("how") == "fsdp2"]
    assert [(row["processes"], row["nodes"], "why" in row) for row in sharded] == [
        (2, 1, False),
        (4, 2, False),
    ], one
    assert not list(Path(one["run_dir"]).glob("slurmgpu-bench-*"))
    assert not list(Path(one["run_dir"]).glob("checkpoints"))


def test_what_follows_goes_into_the_job_file_and_that_job_runs(tool: Tool) -> None:
    on_cpu = ["--gpus", "1", "--set", "train.device=cpu"]
    options = [*on_cpu, "--set", "resources.cpus_per_gpu=4", "--seconds", "1", "-t", "10:00"]
    folder = tool("bench", "task", "job.yaml", "--part", "workers", "--submit", *options).stdout.strip()
    applied = tool("bench", "show", folder, "--wait", "--apply", "job.yaml")
    assert applied.returncode == 0, applied
    text = (tool.work / "job.yaml").read_text()
    assert text.startswith("# mine\n")
    assert text.endswith("}  # slow to load\n")
    assert "workers: 0" not in text, applied
    _, gathered = shown(tool, folder)
    (proposed,) = gathered["jobs"][0]["proposals"]
    planned = tool("plan", "job.yaml").stdout
    assert re.search(rf"measured on .*: train.workers: {proposed['value']} ", planned), planned
    job = tool.submit("job.yaml", *on_cpu, "--set", "train.max_steps=5", "--wait")
    assert job.code == 0, job.log
