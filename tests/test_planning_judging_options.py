"""Options of any script are judged by the same rules as a plan, and nothing is guessed into them."""

from __future__ import annotations

from typing import Any

import pytest

from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.planning.judging_options import ask_of, judge_options

HERE: dict[str, Any] = {
    "name": "here",
    "default_partition": "gpu",
    "partitions": {
        "gpu": {
            "limits": {"max_time": "1-00:00:00"},
            "nodes": [{"count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 64, "memory": "512G"}],
        },
        "cpu": {"nodes": [{"count": 9, "cpus": 32, "memory": "128G"}]},
    },
}


def cluster() -> Cluster:
    return validate(Cluster, Layered(HERE, {}), "cluster")


@pytest.mark.parametrize(
    ("options", "nodes", "gpus", "cpus", "mib"),
    [
        ({}, 1, 0, 1, None),
        ({"nodes": "2-4", "gres": "gpu:a100:2,nvme:900"}, 2, 2, 1, None),
        ({"nodes": "2", "gpus": "8"}, 2, 4, 1, None),
        ({"gpus": "a100:8"}, 2, 4, 1, None),
        ({"ntasks": "8", "ntasks-per-node": "4", "gpus-per-task": "1", "cpus-per-task": "8"}, 2, 4, 32, None),
        ({"gpus-per-node": "2", "cpus-per-gpu": "8", "mem-per-gpu": "60G"}, 1, 2, 16, 2 * 60 * 1024),
        ({"ntasks-per-node": "2", "cpus-per-task": "4", "mem-per-cpu": "2G"}, 1, 0, 8, 8 * 2048),
        ({"nodes": "$N", "gres": "gpu:$G", "mem": "<memory>", "time": "{{ time }}"}, 1, 0, 1, None),
    ],
)
def test_options_are_numbers_per_node(
    options: dict[str, str], nodes: int, gpus: int, cpus: int, mib: int | None
) -> None:
    ask = ask_of(cluster(), options, "gpu")
    assert (ask.nodes, ask.gpus_per_node, ask.cpus_per_node, ask.memory_per_node) == (nodes, gpus, cpus, mib)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gres": "gpu:5"}, "has 4 GPUs a node"),
        ({"gres": "gpu:h100:1"}, "has no h100"),
        ({"partition": "gpux"}, "has no partition 'gpux'; it has gpu, cpu"),
        ({"time": "2-0"}, "allows at most 1-00:00:00"),
        ({"nodes": "5"}, "has 4 such nodes, 5 are needed"),
        ({"partition": "cpu", "gres": "gpu:1"}, "has no GPUs"),
        ({"cpus-per-task": "65"}, "has 64 CPUs a node"),
    ],
)
def test_what_would_never_start_is_said(options: dict[str, str], said: str) -> None:
    assert any(said in str(problem) for problem in judge_options(cluster(), options))


@pytest.mark.parametrize(
    "options",
    [
        {"gres": "gpu:4", "exclusive": None},
        {"partition": "cpu,gpu", "gres": "gpu:1"},
        {"partition": "$PART"},
        {"time": "$TIME", "mem": "0"},
    ],
)
def test_what_starts_somewhere_or_cannot_be_read_is_let_be(options: dict[str, str | None]) -> None:
    assert judge_options(cluster(), options) == []
    assert judge_options(GENERIC, options) == []
