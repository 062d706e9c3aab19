"""``slurmgpu run`` and ``train`` inside real allocations: on which GPUs, and on which node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm

SLURMGPU = [sys.executable, "-m", "slurmgpu"]
SHOW = [
    *("--launch", "srun", "--", "sh", "-c"),
    "sleep 0.$SLURM_PROCID; echo rank $SLURM_PROCID of $SLURM_NTASKS: $CUDA_VISIBLE_DEVICES of $SLURM_GPUS_ON_NODE",
]


def within(tool: Tool, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's, and slurmgpu in it, in the work folder."""
    return tool.slurm.run([*command], timeout=300, env=tool.env, cwd=tool.work)


def test_in_srun_the_job_s_gpus_are_used(tool: Tool) -> None:
    done = within(tool, "srun", "-N1", "--gpus-per-node=2", *SLURMGPU, "run", "--gpus", "4", *SHOW)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: 0,1 of 2", "rank 1 of 2: 0,1 of 2"]
    assert ": used (the job file asks for 4)" in done.stderr
    assert "with gloo" not in done.stderr


def test_without_gpus_of_its_own_a_job_runs_on_the_cpu(tool: Tool) -> None:
    done = within(tool, "srun", "-N1", *SLURMGPU, "run", "--gpus", "1", *SHOW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rank 0 of 1: of ")
    assert "stand-in: GPUs -> the CPU" in done.stderr


def test_the_shell_of_salloc_is_no_node_and_the_hint_leads_to_one(tool: Tool) -> None:
    command = " ".join(f"'{word}'" for word in [*SLURMGPU, "run", "--gpus", "1", *SHOW])
    line = f"{command}; srun --jobid=$SLURM_JOB_ID --overlap {command}"
    done = within(tool, "salloc", "-N1", "--gpus-per-node=1", "bash", "-c", line)
    assert done.returncode == 0, done.stderr
    assert "this shell is not on a node of job" in done.stderr
    assert "--overlap --pty bash" in done.stderr
    assert done.stdout.splitlines() == ["rank 0 of 1: 0 of 1"]
