"""What Slurm hands out is what the plan said: jobs of many kinds on real Slurms, and what each of them got."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.slurm.sandbox_user import User, wait_until

pytestmark = pytest.mark.slurm

# Two types on one node, and whole GPUs beside slices of two sizes: what untyped requests get mixed.
MIXED = """
name: mixed
partitions:
  mixed:
    nodes: [{count: 6, gpus: {a100: 2, a30: 2}, cpus: 32, memory: 100G}]
  sliced:
    nodes:
      - {count: 4, gpus: {a100_2g.10gb: 4, a100_3g.20gb: 4}, cpus: 32, memory: 100G}
      - {count: 2, gpus: 4, gpu_type: a100, cpus: 32, memory: 100G}
  apart:
    nodes:
      - {count: 2, gpus: 4, gpu_type: v100, cpus: 32, memory: 100G}
      - {count: 3, gpus: 4, gpu_type: h100, cpus: 32, memory: 100G}
"""


def of_each_job(user: User, script: str, jobs: int) -> list[str]:
    """Submit a script several times; what each of the jobs that start got: ``gpu:a100:2``, over all its nodes."""
    (user.home / "job.sbatch").write_text(script)
    loop = f"for n in $(seq {jobs}); do sbatch --parsable --output=/dev/null job.sbatch; done"
    ids = set(user.ask("bash", "-c", loop, name="twin").split())

    def given() -> list[str]:
        shown = user.ask("scontrol", "show", "job", "-d", "-o", name="twin").splitlines()
        rows = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown]
        return [
            row["JOB_GRES"]
            for row in rows
            if row["JobId"] in ids and row.get("JOB_GRES", "(null)") != "(null)"
        ]

    def settled() -> bool:
        reasons = user.ask("squeue", "-h", "-t", "PD", "-o", "%r", name="twin").split()
        return bool(given()) and set(reasons) <= {"Priority", "Resources"}

    wait_until(settled)
    found = given()
    user.ask("bash", "-c", 'scancel --user="$(id -un)"', name="twin")
    wait_until(lambda: not user.ask("squeue", "-h", name="twin"))
    return found


def said(user: User, cluster: str, *request: str) -> tuple[str, int, str]:
    """The type and number of GPUs that the plan says, and the script."""
    words = ("--cluster", cluster, "-A", "def-x", "-t", "10", *request, "--", "sleep", "600")
    plan = json.loads(user.slurmgpu("plan", "--json", *words, name="twin"))
    script = user.slurmgpu("render", *words, name="twin")
    return plan["gpu_type"], plan["nodes"] * plan["gpus_per_node"], script


def learned(user: User) -> str:
    """The profile of the twin as discovery writes it."""
    path = user.home / "learned.yaml"
    path.unlink(missing_ok=True)
    user.slurmgpu("cluster", "discover", "--name", "learned", "--to", str(path), name="twin")
    return str(path)


@pytest.fixture(scope="module")
def mixed(user: User) -> Iterator[tuple[str, str]]:
    """The two profiles of a mixed cluster: as written, and as learned from it."""
    path = user.home / "mixed.yaml"
    path.write_text(MIXED)
    user.do("up", "--name", "twin", "--like", str(path), "--no-accounting")
    yield str(path), learned(user)
    user("down", "twin")


@pytest.mark.parametrize(
    ("request_", "gpu_type"),
    [
        (("-p", "mixed", "--gpus", "2"), "a100"),
        (("-p", "mixed", "--gpus-per-node", "2", "--nodes", "2"), "a100"),
        (("-p", "mixed", "--gpus", "a30:2"), "a30"),
        (("-p", "sliced", "--gpus", "1"), "a100"),
        (("-p", "sliced", "--gpus", "3"), "a100"),
        (("-p", "sliced", "--gpus", "a100_3g.20gb:1"), "a100_3g.20gb"),
        (("-p", "apart", "--nodes", "3", "--gpus-per-node", "4"), "h100"),
        (("-p", "apart,sliced", "--gpus", "1"), "h100"),
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, tuple) else None,
)
def test_every_job_gets_the_type_and_number_that_the_plan_said(
    user: User, mixed: tuple[str, str], request_: tuple[str, ...], gpu_type: str
) -> None:
    for cluster in mixed:
        planned, count, script = said(user, cluster, *request_)
        assert planned == gpu_type
        assert set(of_each_job(user, script, 12)) == {f"gpu:{gpu_type}:{count}"}
