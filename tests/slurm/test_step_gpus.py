"""Whole nodes without a GPU option in the job: whether the ranks of a real Slurm's steps get GPUs, and which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script
from slurmgpu.training.processes.group import choose_device
from slurmgpu.training.processes.ranks import from_environment
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = pytest.mark.slurm

# As OLCF's Frontier: nodes are given whole, the job names no GPUs, its steps do.
SITE = {
    "name": "here",
    "partitions": {
        "gpu": {"whole_nodes": True, "nodes": [{"count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 16}]}
    },
    "dialect": {"gpus": "srun", "launcher": "srun", "cpu_share": False},
}


@pytest.fixture
def whole_nodes(slurm: ThrowawaySlurm) -> Iterator[ThrowawaySlurm]:
    slurm.wait_until_idle()
    slurm.run(["scontrol", "update", "PartitionName=gpu", "OverSubscribe=EXCLUSIVE"])
    yield slurm
    slurm.run(["scontrol", "update", "PartitionName=gpu", "OverSubscribe=NO"])


def environments(slurm: ThrowawaySlurm, folder: Path, **job: Any) -> tuple[str, list[dict[str, str]]]:
    """Return the id of a job that ran, and the environment of each of its processes, by rank."""
    (folder / "show.py").write_text(
        "import json, os, torch.distributed\n"
        "name = f\"{os.environ.get('SLURM_STEP_ID', 'batch')}-{os.environ.get('SLURM_PROCID', '0')}.json\"\n"
        "with open(name, 'w') as file:\n"
        "    json.dump(dict(os.environ), file)\n"
    )
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "distributed.py").touch()
    document = {"resources": {"time": "5", **job.pop("resources")}, **job}
    if "steps" not in document:
        document["command"] = ["python3", "show.py"]
    plan = make_plan(
        validate(Job, Layered(document, {}), "job"),
        validate(Cluster, Layered(SITE, {}), "cluster"),
        Surroundings(work_dir=str(folder)),
    )
    assert not [option for option in plan.options if "gpu" in option.name or "gres" in option.name]
    script = folder / "job.sbatch"
    script.write_text(render_script(plan, read_templates()))
    sent = slurm.run(["sbatch", "--parsable", f"--output={folder / 'log'}", str(script)])
    assert sent.returncode == 0, sent
    job_id = sent.stdout.strip()
    assert slurm.wait_for(job_id) == "COMPLETED", (folder / "log").read_text()
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return job_id, sorted(found, key=lambda one: int(one.get("SLURM_PROCID", 0)))


def given_to_step(slurm: ThrowawaySlurm, job_id: str) -> str:
    """Return what the job's first step was given."""
    return slurm.wait_for_steps(job_id, ["0"], "AllocTRES")["0"]


def test_each_rank_gets_a_gpu_of_its_own(whole_nodes: ThrowawaySlurm, tmp_path: Path) -> None:
    job_id, ranks = environments(whole_nodes, tmp_path, resources={"nodes": 2, "gpus_per_node": 4})
    assert "gres/gpu=8" in given_to_step(whole_nodes, job_id)
    assert [one["RANK"] for one in ranks] == [str(rank) for rank in range(8)]
    by_script, by_entrypoint = set(), set()
    for one in ranks:
        # From 21.08 on they are hidden from each other, and each is number 0 to its own rank.
        sees = one["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(sees) == (1 if whole_nodes.release > (20, 11) else 4)
        by_script.add((one["SLURMD_NODENAME"], sees[int(one["LOCAL_RANK"])]))
        assert int(one["LOCAL_RANK"]) < int(one["LOCAL_WORLD_SIZE"])
        made = from_environment({name: value for name, value in one.items() if name.startswith("SLURM")})
        assert (made.local_rank, made.local_world_size) == (int(one["SLURM_LOCALID"]), 4)
        by_entrypoint.add((one["SLURMD_NODENAME"], sees[choose_device(made, seen=len(sees)).index or 0]))
    every = {(node, gpu) for node in {one["SLURMD_NODENAME"] for one in ranks} for gpu in "0123"}
    assert len(every) == 8
    assert by_script == by_entrypoint == every


def test_one_task_a_node_gets_all_gpus_of_it(whole_nodes: ThrowawaySlurm, tmp_path: Path) -> None:
    """As torchrun does, and a script that starts its own processes."""
    resources = {"nodes": 2, "gpus_per_node": 4, "tasks_per_node": 1}
    job_id, nodes = environments(whole_nodes, tmp_path, resources=resources, launch="srun")
    assert "gres/gpu=8" in given_to_step(whole_nodes, job_id)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in nodes] == ["0,1,2,3"] * 2


def test_a_command_without_srun_sees_its_nodes_gpus(whole_nodes: ThrowawaySlurm, tmp_path: Path) -> None:
    _, (only,) = environments(whole_nodes, tmp_path, resources={"gpus": 1})
    assert only["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_steps_side_by_side_have_the_gpus_they_ask_for(whole_nodes: ThrowawaySlurm, tmp_path: Path) -> None:
    show = {"command": ["python3", "show.py"]}
    steps = {"many": {**show, "gpus": 3, "launch": "srun"}, "one": {**show, "gpus": 1}}
    _, found = environments(whole_nodes, tmp_path, steps=steps, resources={"gpus": 4})
    many = {
        gpu for one in found if one["SLURM_NTASKS"] == "3" for gpu in one["CUDA_VISIBLE_DEVICES"].split(",")
    }
    alone = {
        gpu for one in found if one["SLURM_NTASKS"] == "1" for gpu in one["CUDA_VISIBLE_DEVICES"].split(",")
    }
    assert (len(many), len(alone), len(many | alone)) == (3, 1, 4)
