"""slurmgpu init against the real Slurm: from nothing to a finished training, and the same job file on a second cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from tests.slurm.sandbox_user import User, a_user, wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Tool

pytestmark = pytest.mark.slurm

NEXT = "slurmgpu plan first.yaml\nslurmgpu submit first.yaml --follow\nslurmgpu status\n"


@pytest.fixture
def newcomer(release: str | None) -> Iterator[User]:
    """Somebody without any file, in a home of their own, who has the Python that runs these tests active."""
    with a_user() as user:
        del user.env["XDG_CONFIG_HOME"]
        user.env |= {"HOME": str(user.home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        user.env["PATH"] = f"{Path(sys.executable).parent}:{user.env['PATH']}"
        shutil.copytree(ROOT / "examples/digits", user.home / "digits", ignore=shutil.ignore_patterns("runs"))
        yield user


def slurmgpu(user: User, *words: str, name: str = "default") -> subprocess.CompletedProcess[str]:
    """A command of slurmgpu in the sandbox, which must succeed."""
    done = user("exec", "--name", name, "--", sys.executable, "-m", "slurmgpu", *words)
    assert done.returncode == 0, done.stderr
    return done


def options_of(user: User) -> list[str]:
    """What the newest script asks for, but for names and folders."""
    script = max((user.home / "digits/runs").iterdir(), key=lambda run: run.stat().st_mtime) / "script.sbatch"
    found = re.findall(r"^#SBATCH (--\S+)", script.read_text(), flags=re.MULTILINE)
    return [option for option in found if not option.startswith(("--job-name", "--chdir", "--output"))]


@pytest.mark.long
def test_three_commands_lead_to_a_finished_training_and_unchanged_on_a_second_cluster(newcomer: User) -> None:
    newcomer.do("up", "--cpus", "8", "--memory", "16G")
    ready = slurmgpu(newcomer, "init", "--yes")
    assert ready.stdout == NEXT
    job = (newcomer.home / "digits/job.yaml").read_bytes()
    trained = slurmgpu(newcomer, "submit", "digits/job.yaml", "--follow")
    assert "test accuracy 9" in trained.stdout
    assert "COMPLETED" in trained.stderr
    here = options_of(newcomer)
    assert "--gres=gpu:2" in here
    newcomer.do("down")

    cluster = load_cluster(data_folder("clusters") / "nersc-perlmutter.yaml")
    newcomer.do("up", "--name", "second", "--like", cluster.name)
    slurmgpu(newcomer, "init", "--yes", "--job", "second.yaml", name="second")
    submitted = slurmgpu(newcomer, "submit", "digits/job.yaml", name="second")
    shown = newcomer.ask("scontrol", "show", "job", "-o", submitted.stdout.strip(), name="second")
    # Accepted, and waiting for its nodes or given them, which in a twin never come.
    assert re.search(r" JobState=(PENDING Reason=(None|Resources|Priority)|CONFIGURING|RUNNING) ", shown), (
        shown
    )
    assert re.search(r" NumNodes=2\b", shown), shown
    assert (newcomer.home / "digits/job.yaml").read_bytes() == job
    there = options_of(newcomer)
    assert (cluster.dialect.gpus, cluster.dialect.constraint) == ("gpus-per-node", "gpu")
    # Two kinds of A100 share the partition: the commoner one is named, so that both nodes have the same.
    assert {"--gpus-per-node=2", '--constraint="gpu&hbm40g"'} <= set(there)
    assert f"--qos={cluster.dialect.qos}" in there
    # What it does not require is left to Slurm: the project that its user has chosen as the usual one is charged.
    assert cluster.dialect.required == ("constraint",)
    assert not any(option.startswith(("--gres", "--partition", "--account")) for option in there)
    # All that init wrote of a sandbox goes with it.
    newcomer.do("down", "second")
    assert not (newcomer.home / ".config/slurmgpu").exists()


@pytest.mark.long
def test_on_a_cluster_that_is_documented_its_rules_are_kept(newcomer: User) -> None:
    newcomer.do("up", "--like", "ncsa-delta")
    # As on its login node: nothing but Slurm's commands says where one is.
    bare = ("env", "-u", "SLURMGPU_CLUSTER", "-u", "SLURMGPU_SANDBOX", sys.executable, "-m", "slurmgpu")
    assert newcomer.ask(*bare, "init", "--yes") == NEXT.strip()
    profile = (newcomer.home / ".config/slurmgpu/clusters/sandbox-default.yaml").read_text()
    assert "\nbased_on: ncsa-delta\n" in profile
    newcomer.ask(*bare, "submit", "digits/job.yaml")
    assert {"--gpus-per-node=2", "--partition=gpuA100x4"} <= set(options_of(newcomer))
    assert newcomer.ask(*bare, "cluster", "refresh") == ""


@pytest.mark.long
def test_on_a_cluster_the_first_job_runs_with_the_torch_tried(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    tool = Tool(slurm, tmp_path)
    ready = tool("init", "--yes")
    assert (ready.returncode, ready.stdout) == (0, NEXT), ready
    assert (tool.config / "clusters/throwaway.yaml").is_file()
    (version,) = re.findall(r"^  torch ([^,\s]+)", ready.stderr, flags=re.MULTILINE)
    first = tool("submit", "first.yaml", "--follow")
    assert first.returncode == 0, first
    assert f"torch {version} for CUDA" in first.stdout
    again = tool("init", "--yes")
    assert again.returncode == 0, again
    assert "kept: first.yaml is there already" in again.stderr
    assert tool("cluster", "refresh").stdout == ""


def test_without_accounting_and_without_gpus_the_first_job_runs_all_the_same(newcomer: User) -> None:
    newcomer.do(
        "up", "--no-accounting", "--nodes", "1", "--gpus-per-node", "0", "--cpus", "2", "--memory", "8G"
    )
    slurmgpu(newcomer, "init", "--yes")
    job = slurmgpu(newcomer, "submit", "first.yaml").stdout.strip()
    log = newcomer.home / "runs"
    wait_until(lambda: "COMPLETED" in newcomer.ask("scontrol", "show", "job", job))
    (written,) = log.glob(f"first-*/logs/{job}.out")
    assert "sees 0 GPUs" in written.read_text()
