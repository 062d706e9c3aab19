"""Failures provoked in real jobs, and what their user reads: the file, the log's last lines, `slurmgpu why`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from slurmgpu.cli.why import command
from slurmgpu.slurm import Slurm
from tests.slurm.conftest import need_slurm
from tests.slurm.provoked import FAULTS, PROGRAMS
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(900)]

HEALTHY = "healthy"
NAMES = [HEALTHY, *FAULTS]
AT_ONCE = 6  # more would only wait for each other on a small machine
# Each task in a folder of its own; ERROR in the log of a job that went well is nobody's cause.
RUN = """
name=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" names)
cp -r programs "tasks/$name" && cd "tasks/$name"
exec bash task.sh
"""
WELL = "echo 'ERROR: 3 samples were left out'; echo 'step 1: loss 0.5'"


@dataclass
class Task:
    """One task of the array, when it has ended."""

    raw_id: int
    log: str
    cause: dict[str, Any] | None
    why: dict[str, Any]

    @property
    def last(self) -> list[str]:
        """What the script's end has said."""
        return [line for line in self.log.splitlines() if line.startswith("slurmgpu: f")]


def can_mount() -> bool:
    """Whether a task may have a file system of its own here."""
    made = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return os.getuid() == 0 and made.returncode == 0


class Harsh(ThrowawaySlurm):
    """One that ends what takes more memory than it asked for, and is not shared: nodes are lost in it."""

    def _configured(self) -> None:
        super()._configured()
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.write("JobAcctGatherParams=OverMemoryKill\nKillWait=3\n")


@pytest.fixture(scope="module")
def harsh(release: str | None) -> Iterator[ThrowawaySlurm]:
    need_slurm()
    with Harsh() as running:
        yield running


@pytest.fixture(scope="module")
def tool(harsh: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    made = Tool(harsh, tmp_path_factory.mktemp("provoked"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.work)
        for name in ("XDG_CONFIG_HOME", "SLURMGPU_SITE"):
            patch.setenv(name, made.env[name])
        yield made


def act(tool: Tool, name: str, job: Submitted) -> None:
    """Do to a running job what its name says."""
    if name == "cancelled":
        done = tool.slurm.run(["scancel", str(job.job_id)])
    elif name == "time-limit":
        # scontrol reads the clock, and slurmctld later refuses what is past: it needs time to get there.
        done = tool.slurm.run(["scontrol", "update", f"jobid={job.job_id}", "endtime=now+10"])
    elif name == "node-failure":
        done = tool.slurm.run(["scontrol", "update", "nodename=node4", "state=down", "reason=broken"])
    elif name == "preempted":
        other = ["-p", "gpu", "-w", "node3", "--gres=gpu:4", "-t", "1", "-o", "/dev/null", "--wrap", "true"]
        done = tool.slurm.run(["sbatch", *other])
    else:
        return
    assert done.returncode == 0, done


# What Slurm does to a job: the kind, the options by which it can be done, and what is to be read.
EVENTS = {
    "cancelled": (("-t", "5"), " by you"),
    "time-limit": (("-t", "5"), "time limit"),
    "node-failure": (("-t", "5", "--no-requeue", "--sbatch", "nodelist=node4"), "a node of the job failed"),
    "preempted": (("-t", "5", "--no-requeue", "-p", "preempt", "--sbatch", "nodelist=node3"), "comes first"),
    "host-memory": (("-t", "5", "--mem", "100M"), "memory that the job asked for was full"),
}
WAITS = "echo begun; sleep 600"
TAKES = "exec python -c 'import time; data = bytearray(400 << 20); print(len(data)); time.sleep(600)'"


@pytest.fixture(scope="module")
def events(tool: Tool) -> dict[str, Task]:
    """Jobs to each of which Slurm did something, when all have ended."""
    made = {}
    for name, (options, _) in EVENTS.items():
        does = TAKES if name == "host-memory" else WAITS
        made[name] = tool.submit("--gpus=1", *options, "--", "bash", "-c", does)
    for name, job in made.items():
        if name != "host-memory":
            wait_until(lambda job=job: log_of(job).exists() and "begun" in job.log)
        act(tool, name, job)
    for job in made.values():
        tool.slurm.wait_for(job.job_id)
    return {name: left_of(tool.slurm, job) for name, job in made.items()}


@pytest.fixture(scope="module")
def tasks(tool: Tool) -> dict[str, Task]:
    """All of them, in one array."""
    for name, text in PROGRAMS.items():
        tool.file(f"programs/{name}", text)
    tool.file("names", "\n".join(NAMES) + "\n")
    tool.file("run.sh", RUN.replace("bash task.sh", 'bash "../../faults/$name.sh"'))
    for name in NAMES:
        tool.file(f"faults/{name}.sh", (FAULTS[name].does if name != HEALTHY else WELL) + "\n")
    (tool.work / "tasks").mkdir()
    made = tool.submit("-G", "1", "-t", "10", "-a", f"0-{len(NAMES) - 1}%{AT_ONCE}", "--", "bash", "run.sh")
    tool.slurm.wait_for(made.job_id, timeout=600)
    told: list[dict[str, Any]] = []
    ids = [f"{made.job_id}_{number}" for number in range(len(NAMES))]
    for begin in range(0, len(ids), 10):  # as many are explained at once
        told += why(tool.slurm, *ids[begin : begin + 10])
    return {
        NAMES[int(one["job"]["job_id"].partition("_")[2])]: left_of(tool.slurm, made, one) for one in told
    }


def log_of(job: Submitted) -> Path:
    return job.run_dir / "logs" / f"{job.job_id}.out"


def why(slurm: ThrowawaySlurm, *jobs: str) -> list[dict[str, Any]]:
    """What `slurmgpu why` says."""
    shown = CliRunner().invoke(command, ["--json", *jobs], obj=Slurm(env=slurm.env))
    assert shown.exit_code == 0, shown.output
    told: list[dict[str, Any]] = json.loads(shown.stdout)["jobs"]
    return told


def left_of(slurm: ThrowawaySlurm, made: Submitted, told: dict[str, Any] | None = None) -> Task:
    """What a job or a task has left behind, and what is said of it."""
    one = told or why(slurm, str(made.job_id))[0]
    name, raw = one["job"]["job_id"], one["job"]["raw_id"]
    (file,) = [*made.run_dir.glob(f"**/cause.{raw}.json")] or [None]
    cause = json.loads(file.read_text()) if file is not None else None
    return Task(raw, (made.run_dir / "logs" / f"{name}.out").read_text(errors="replace"), cause, one)


@pytest.mark.parametrize("name", FAULTS)
def test_a_provoked_failure_is_told_by_its_cause(name: str, tasks: dict[str, Task]) -> None:
    fault, task = FAULTS[name], tasks[name]
    if fault.root and not can_mount():
        pytest.skip("no file system of a task's own may be mounted here")
    assert task.cause is not None, task.log
    assert (task.cause["kind"], task.cause["rank"] in fault.ranks) == (fault.kind, True), task.log
    assert fault.says in task.cause["what"], task.log
    assert (task.cause["job_id"], task.cause["schema"]) == (str(task.raw_id), "slurmgpu.cause/1")
    if fault.kind == "not-known":
        assert task.last == [f"slurmgpu: first cause: {task.cause['what']}"]
    else:
        assert task.last[0].startswith("slurmgpu: first cause: "), task.log
        assert task.cause["what"] in task.last[0]
        assert task.last[1] == f"slurmgpu: fix: {task.cause['fix']}"
        assert task.log.splitlines()[-2:] == task.last
    assert task.why["verdict"] == "ended"
    assert {key: task.why["cause"][key] for key in ("kind", "what", "rank")} == {
        key: task.cause[key] for key in ("kind", "what", "rank")
    }


def test_of_a_healthy_task_beside_them_nothing_is_said(tasks: dict[str, Task]) -> None:
    task = tasks[HEALTHY]
    assert (task.cause, task.last, task.why.get("cause")) == (None, [], None), task.log
    assert "ERROR" in task.log


@pytest.mark.parametrize("name", EVENTS)
def test_what_slurm_did_to_a_job_is_told(name: str, events: dict[str, Task]) -> None:
    task, says = events[name], EVENTS[name][1]
    assert task.why["verdict"] == "ended"
    assert (task.why["cause"]["kind"], says in task.why["cause"]["what"]) == (name, True), task
    if name not in ("node-failure", "host-memory"):  # of these nothing was left that could write
        assert task.cause is not None, task.log
        assert task.cause["kind"] == name, task.log
        assert len(task.last) == 2, task.log


# Rank 1 never ends its fourth step; the other waits for its gradients.
HANGS = """
import time
import torch

class Hangs:
    steps = 0

    def model(self, cfg):
        return torch.nn.Linear(3, 1)

    def dataset(self, cfg, split):
        return torch.utils.data.TensorDataset(torch.randn(400, 3), torch.randn(400, 1)) if split == "train" else None

    def loss(self, model, batch):
        self.steps += 1
        if self.steps == 4 and torch.distributed.get_rank() == 1:
            time.sleep(600)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""


def test_the_rank_that_hangs_in_a_training_is_named_by_torchs_flight_recorder(tool: Tool) -> None:
    tool.file("hangs.py", HANGS)
    tool.file(
        "hangs.yaml", "train: {task: hangs.py:Hangs, epochs: 1, batch_size: 8, workers: 0, hang_timeout: 6}\n"
    )
    job = tool.submit("-J", "hangs", "-G", "2", "-t", "10", "--wait", "hangs.yaml")
    tool.slurm.wait_for(job.job_id)
    task = left_of(tool.slurm, job)
    assert task.cause is not None, task.log
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch records no collectives of gloo")
    assert (task.cause["kind"], task.cause["rank"], task.cause["certain"]) == ("hang", 1, True), task.log
    assert "rank 1 did not come to all" in task.cause["what"]
    assert "(hang_timeout)" in task.last[0]


def test_a_node_on_which_jobs_failed_before_is_named(tool: Tool) -> None:
    tool.file("segfault.py", PROGRAMS["segfault.py"])
    ids = []
    for _ in range(2):
        job = tool.submit(
            "-G", "1", "-t", "5", "--sbatch", "nodelist=node2", "--wait", "--", "python", "segfault.py"
        )
        tool.slurm.wait_for(job.job_id)
        ids.append(job.job_id)
    first, second = (tool("why", str(one)).stdout for one in ids)
    assert "first cause: on node2: the process crashed (segmentation fault)" in second
    # Tasks of the array may have been there, too.
    named = re.search(r"the same node, node2, was where .+ of yours failed first: (.+)\n", second)
    assert named is not None, second
    assert named[1].split(", ")[0] == str(ids[0])
    assert str(ids[1]) not in first
