"""Nodes that share a block of the network (`--segment`): from the job, or from the partition's profile."""

from __future__ import annotations

from typing import Any

import pytest

from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings

RACKS = Cluster.model_validate(
    {
        "name": "racks",
        "partitions": {"nvl72": {"nodes": ({"count": 72, "gpus": 4, "gpu_type": "gb200"},), "segment": 18}},
        "default_partition": "nvl72",
    }
)


def plan(nodes: int, **resources: Any) -> Plan:
    document = {
        "resources": {"nodes": nodes, "gpus_per_node": 4, **resources},
        "command": ["python", "train.py"],
    }
    return make_plan(Job.model_validate(document, strict=False), RACKS, Surroundings(work_dir="/w"))


@pytest.mark.parametrize(
    ("nodes", "segment"),
    [(1, None), (2, "2"), (18, "18"), (20, "10"), (36, "18"), (45, "15"), (19, None), (38, "2")],
)
def test_nodes_are_kept_in_as_few_racks_as_can_be_shared_evenly(nodes: int, segment: str | None) -> None:
    """Slurm refuses a job whose nodes are no multiple of the segment, and a segment larger than the block."""
    assert plan(nodes).option("segment") == segment


def test_the_plan_says_why() -> None:
    (option,) = [one for one in plan(36).options if one.name == "segment"]
    assert option.why == "partition nvl72 has blocks of 18 nodes"


def test_the_jobs_own_segment_wins() -> None:
    assert plan(36, segment=4).option("segment") == "4"


@pytest.mark.parametrize(("release", "known"), [((23, 11), False), ((24, 5), True), ((26, 5), True)])
def test_sbatch_knows_it_from_24_05_on(release: tuple[int, int], known: bool) -> None:
    assert bool(SBATCH.meanings("segment", release)) == known
