"""Whole scripts, byte for byte. GOLDEN=write writes them anew: read the difference before you commit it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.jobs import read_python
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.environment import Packed
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = {"uva-pytorch": "uva-afton", "uva-conda": "uva-afton"}
CASES = sorted(path.stem for path in (GOLDEN / "jobs").glob("*.yaml"))


def golden_plan(name: str) -> Plan:
    if name in SHIPPED:
        path, cluster = (
            data_folder("jobs") / f"{name}.yaml",
            load_cluster(data_folder("clusters") / f"{SHIPPED[name]}.yaml"),
        )
    else:
        path = GOLDEN / "jobs" / f"{name}.yaml"
        cluster = named_cluster(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# cluster: "))
    job = validate(Job, read_file(path), "job")
    script = read_python([f"{name}.py"], path.parent)
    plan = make_plan(job, cluster, Surroundings(work_dir=job.work_dir or "/home/me/project", script=script))
    return plan.model_copy(update={"packed": packed(plan)})


def packed(plan: Plan) -> Packed | None:
    """What submission would have found and packed."""
    python = plan.environment.python
    if python.stage is None or python.activated is None:
        return None
    kind = python.activated.kind
    archive = "/scratch/me/environments/venvs-torch-0123456789abcdef.tar.zst"
    base = "/sw/python/3.12" if kind == "venv" else None
    return Packed(kind=kind, prefix="/home/me/venvs/torch", archive=archive, mib=6200, base=base)


def named_cluster(name: str) -> Cluster:
    return GENERIC if name == "generic" else load_cluster(GOLDEN / "clusters" / f"{name}.yaml")


def test_there_are_at_least_twenty_golden_jobs() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("name", [*CASES, *SHIPPED])
def test_the_script_is_the_golden_one_byte_for_byte(name: str) -> None:
    script = render_script(golden_plan(name), read_templates())
    golden = GOLDEN / "scripts" / f"{name}.sbatch"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(script, encoding="utf-8")
    assert script.encode() == golden.read_bytes()


def test_no_golden_script_is_left_without_its_job() -> None:
    assert sorted(path.stem for path in (GOLDEN / "scripts").glob("*.sbatch")) == sorted([*CASES, *SHIPPED])


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: apt-get install shellcheck"
)
def test_every_golden_script_is_clean_by_shellcheck() -> None:
    scripts = [str(path) for path in sorted((GOLDEN / "scripts").glob("*.sbatch"))]
    done = subprocess.run(["shellcheck", "--shell=bash", *scripts], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("name", [*CASES, *SHIPPED])
def test_every_golden_script_is_valid_bash(name: str) -> None:
    subprocess.run(["bash", "-n", str(GOLDEN / "scripts" / f"{name}.sbatch")], check=True)


@pytest.mark.parametrize("name", [*CASES, *SHIPPED])
def test_options_stand_before_the_first_command_and_each_once(name: str) -> None:
    lines = (GOLDEN / "scripts" / f"{name}.sbatch").read_text(encoding="utf-8").splitlines()
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [index for index, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives
    assert max(directives) < first_command
    names = " ".join(lines[index].removeprefix("#SBATCH ").split("=")[0] for index in directives)
    for component in map(str.split, names.split("hetjob")):
        assert len(component) == len(set(component))
