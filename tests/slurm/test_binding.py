"""What a real Slurm hands its tasks of a job's binding: in words where CPUs are pretended, on this machine's own where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = pytest.mark.slurm

SITE = Cluster.model_validate(
    {
        "name": "here",
        "partitions": {
            "gpu": {
                "nodes": (
                    {"count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 16, "cpu_bind": "map_cpu:0,4,8,12"},
                )
            }
        },
    }
)
SHOW = (
    "import json, os\n"
    "allowed = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('Cpus_allowed_list'))\n"
    "with open(f\"{os.environ['SLURM_PROCID']}.json\", 'w') as file:\n"
    "    json.dump({**os.environ, 'allowed': allowed}, file)\n"
)


def shown(slurm: ThrowawaySlurm, folder: Path, **job: Any) -> list[dict[str, str]]:
    """The environment of each task of a job that ran, and the CPUs that it may use."""
    (folder / "show.py").write_text(SHOW)
    document = {"command": ["python3", "show.py"], "launch": {"launcher": "srun"}, **job}
    document["resources"] = {"gpus": "a100:4", "time": 5, **document["resources"]}
    made = make_plan(Job.model_validate(document, strict=False), SITE, Surroundings(work_dir=str(folder)))
    script = folder / "job.sbatch"
    script.write_text(render_script(made, read_templates()))
    sent = slurm.run(["sbatch", "--parsable", f"--output={folder / 'log'}", str(script)])
    assert sent.returncode == 0, sent
    assert slurm.wait_for(sent.stdout.strip()) == "COMPLETED", (folder / "log").read_text()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def test_a_task_is_told_of_the_binding_that_the_job_asks_for(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    tasks = shown(slurm, tmp_path, resources={
        "cpu_bind": "mask_cpu:f,f0,f00,f000", "mem_bind": "local", "gpu_bind": "single:1",
        "distribution": "block:cyclic",
    })  # fmt: skip
    assert {task["SLURM_CPU_BIND"] for task in tasks} == {"quiet,mask_cpu:f,f0,f00,f000"}
    assert {task["SLURM_MEM_BIND_TYPE"].rstrip(":") for task in tasks} == {"local"}
    assert {task["SLURM_DISTRIBUTION"] for task in tasks} == {"block:cyclic"}
    assert sorted(task["CUDA_VISIBLE_DEVICES"] for task in tasks) == ["0", "1", "2", "3"]
    assert [task["LOCAL_RANK"] for task in tasks] == ["0"] * 4


def test_the_profiles_map_reaches_the_tasks_of_whole_nodes(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    tasks = shown(slurm, tmp_path, resources={"exclusive": True})
    assert {task["SLURM_CPU_BIND_LIST"] for task in tasks} == {"0,4,8,12"}
    assert [task["LOCAL_RANK"] for task in tasks] == list("0123")
    assert {task["CUDA_VISIBLE_DEVICES"] for task in tasks} == {"0,1,2,3"}


def test_a_hint_reaches_the_tasks_and_nothing_else_is_bound(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    tasks = shown(slurm, tmp_path, resources={"hint": "nomultithread"})
    assert {task["SLURM_HINT"] for task in tasks} == {"nomultithread"}
    assert not any(task.get("SLURM_CPU_BIND_LIST") for task in tasks)
