"""Functions and commands under submitit, on a real Slurm."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

import pytest
from submitit.helpers import Checkpointable, DelayedSubmission

from slurmgpu import submit
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm

PROFILE = """\
name: throwaway
partitions:
  gpu:
    nodes:
      - {count: 4, gpus: 4, gpu_type: a100, cpus: 16, memory: 64000M}
"""
SEEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")


@pytest.fixture
def project(slurm: ThrowawaySlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder on the throwaway Slurm, as the current folder."""
    (tmp_path / "cluster.yaml").write_text(PROFILE)
    (tmp_path / "slurmgpu.yaml").write_text(f"cluster: {tmp_path}/cluster.yaml\n")
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.env[name])
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)
    # A surrounding job, and habits that a script's options must not lose against.
    monkeypatch.setenv("SBATCH_PARTITION", "no-such-partition")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    return tmp_path


def test_a_function_runs_once_per_gpu_and_its_results_come_back(slurm: ThrowawaySlurm, project: Path) -> None:
    def seen(*names: str, suffix: str) -> dict[str, str]:
        print(f"this is rank {os.environ['RANK']}")
        return {name: os.environ[name] + suffix for name in names}

    slurm.wait_until_idle()
    job = submit(seen, *SEEN, kwargs={"suffix": "!"}, gpus=2, time="0:05:00")
    assert slurm.wait_for(job.job_id) == "COMPLETED"
    results = job.results()
    assert [result["RANK"] for result in results] == ["0!", "1!"]
    assert [result["LOCAL_RANK"] for result in results] == ["0!", "1!"]
    assert {result["CUDA_VISIBLE_DEVICES"] for result in results} == {"0,1!"}
    assert {result["WORLD_SIZE"] for result in results} == {"2!"}
    assert {result["LOCAL_WORLD_SIZE"] for result in results} == {"2!"}
    assert {result["MASTER_ADDR"] for result in results} == {"127.0.0.1!"}
    assert "this is rank 1" in (job.task(1).stdout() or "")
    (run_dir,) = (project / "runs").iterdir()
    assert run_dir.name.startswith("seen-")
    assert json.loads((run_dir / "plan.json").read_text())["gpus_per_node"] == 2
    assert json.loads((run_dir / "run.json").read_text())["job_id"] == int(job.job_id)


def test_a_submission_that_is_killed_right_after_sbatch_leaves_a_job_that_finds_its_function(
    slurm: ThrowawaySlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client does once Slurm has the job comes too late for somebody."""

    def killed(*_: object) -> None:
        raise ConnectionAbortedError("the client is gone")

    slurm.wait_until_idle()
    monkeypatch.setattr("slurmgpu.runs.by_submitit.attach", killed)
    with pytest.raises(ConnectionAbortedError):
        submit(os.getpid, gpus=1, time="0:05:00")
    (run_dir,) = (project / "runs").iterdir()
    job_id = json.loads((run_dir / "run.json").read_text())["job_id"]
    assert slurm.wait_for(job_id) == "COMPLETED"
    assert list((run_dir / "submitit").glob("*_result.pkl"))


@pytest.mark.long
def test_a_function_joins_a_process_group_over_two_nodes(slurm: ThrowawaySlurm, project: Path) -> None:
    def total() -> float:
        import torch

        torch.distributed.init_process_group("gloo")
        value = torch.tensor(float(torch.distributed.get_rank()))
        torch.distributed.all_reduce(value)
        torch.distributed.destroy_process_group()
        return value.item()

    job = submit(total, nodes=2, gpus_per_node=2, time="0:05:00")
    assert slurm.wait_for(job.job_id) == "COMPLETED"
    assert job.results() == [6.0] * 4


def test_a_function_on_one_gpu_makes_a_process_group_of_its_own(slurm: ThrowawaySlurm, project: Path) -> None:
    def size() -> int:
        import torch

        torch.distributed.init_process_group("gloo")
        return torch.distributed.get_world_size()

    job = submit(size, gpus=1, time="0:05:00")
    assert slurm.wait_for(job.job_id) == "COMPLETED"
    assert job.result() == 1


def test_the_exception_of_a_function_in_the_project_comes_back(
    slurm: ThrowawaySlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "own_module.py").write_text("def broken():\n    raise ValueError('no such batch')\n")
    monkeypatch.syspath_prepend(str(project))
    job = submit(importlib.import_module("own_module").broken, gpus=1, time="0:05:00")
    assert slurm.wait_for(job.job_id) == "FAILED"
    assert "no such batch" in str(job.exception())


class Count(Checkpointable):
    """Counts its starts; the first one waits to be told to stop."""

    def __init__(self) -> None:
        self.starts = 0

    def __call__(self) -> int:
        self.starts += 1
        if self.starts == 1:
            Path("started").touch()
            time.sleep(240)
        return self.starts

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)


@pytest.mark.long
def test_a_preempted_function_goes_on_with_what_it_saved(slurm: ThrowawaySlurm, project: Path) -> None:
    job = submit(Count(), gpus=1, time="0:30:00")
    wait_until((project / "started").exists, seen=job.stdout)
    slurm.run(["scancel", "--signal=USR2", job.job_id])
    states = ["sacct", "-D", "-X", "-n", "-j", job.job_id, "-o", "State"]
    wait_until(lambda: "REQUEUED" in slurm.run(states).stdout, seen=job.stdout)
    assert slurm.wait_for(job.job_id) == "COMPLETED"
    assert job.result() == 2


def cli(slurm: ThrowawaySlurm, project: Path, *words: str) -> tuple[str, Path]:
    """The job id that ``slurmgpu submit --via submitit`` prints alone on stdout, and the run directory."""
    done = slurm.run(
        [sys.executable, "-m", "slurmgpu", "submit", "--via", "submitit", *words],
        cwd=project,
        env={"PYTHONPATH": os.environ["PYTHONPATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdecimal()
    (run_dir,) = (project / "runs").iterdir()
    return done.stdout.strip(), run_dir


def test_a_commands_processes_get_their_ranks(slurm: ThrowawaySlurm, project: Path) -> None:
    (project / "ranks.py").write_text(
        "import os, pathlib, sys\n"
        "seen = [os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT')]\n"
        "pathlib.Path(f'rank-{seen[0]}').write_text(' '.join([*seen, *sys.argv[1:]]))\n"
    )
    job, _ = cli(slurm, project, "--gpus", "2", "-t", "5", "--", sys.executable, "ranks.py", "it's $HOME")
    assert slurm.wait_for(job) == "COMPLETED"
    for rank in ("0", "1"):
        seen = (project / f"rank-{rank}").read_text().split(" ", 4)
        assert seen[:3] == [rank, rank, "2"]
        assert seen[3].isdecimal()
        assert seen[4] == "it's $HOME"


@pytest.mark.long
@pytest.mark.chosen
def test_a_training_task_trains_on_two_nodes(slurm: ThrowawaySlurm, project: Path) -> None:
    small = Path(__file__).parents[1] / "training" / "small.py"
    (project / "task.py").write_bytes(small.read_bytes())
    (project / "job.yaml").write_text(
        "name: small\n"
        "resources: {nodes: 2, gpus_per_node: 1, time: '0:05:00'}\n"
        f"environment: {{python: {{interpreter: {sys.executable}}}}}\n"
        "train: {task: 'task.py:Line', epochs: 2}\n"
    )
    job, run_dir = cli(slurm, project, "job.yaml")
    assert slurm.wait_for(job) == "COMPLETED"
    assert json.loads((run_dir / "train.json").read_text())["epochs"] == 2
    assert (run_dir / "code" / "slurmgpu_training").is_dir()
    assert (run_dir / "metrics.jsonl").read_text()
