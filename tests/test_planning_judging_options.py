"""Options of any script are judged by the same rules as a plan, and nothing is guessed into them."""

from __future__ import annotations

from typing import Any

import pytest

from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.planning.judging_options import ask_of, judge_options, judge_script

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
        ({"nodes": "$N", "gres": "gpu:$G", "mem": "<memory>", "time": "{{ time }}"}, 1, 1, 1, None),
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
        ({"time": "2-0"}, "allows at most 1-00:00:00"),
        ({"nodes": "5", "gres": "gpu:1"}, "has 4 such nodes, 5 are needed"),
        ({"partition": "cpu", "gres": "gpu:1"}, "has no GPUs"),
        ({"cpus-per-task": "65", "gres": "gpu:1"}, "has 64 CPUs a node"),
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


def complete() -> Cluster:
    """The same cluster, as Slurm told of it."""
    asked = {"slurm": {"release": "24.11.5"}}
    return validate(Cluster, Layered(HERE | asked, {}), "cluster")


def test_a_partition_that_is_not_described_is_missing_only_where_slurm_was_asked() -> None:
    options = {"partition": "gpux", "gres": "gpu:9", "time": "9-0"}
    assert judge_options(cluster(), options) == []
    assert [str(one) for one in judge_options(complete(), options)] == [
        "cluster 'here' has no partition 'gpux'; it has gpu, cpu"
    ]


def test_a_job_without_a_partition_goes_where_the_site_routes_it() -> None:
    routed = {"default_partition": "cpu", "dialect": {"partition": "optional"}}
    site = validate(Cluster, Layered(HERE | routed, {}), "cluster")
    assert judge_options(site, {"gres": "gpu:a100:1"}) == []
    assert [one.about for one in judge_options(site, {"gres": "gpu:a100:5"})] == ["gpus"]
    assert judge_options(
        validate(Cluster, Layered(HERE | {"default_partition": "cpu"}, {}), "c"), {"gres": "gpu:1"}
    )


def test_beside_the_nodes_with_gpus_there_may_be_others_that_are_not_described() -> None:
    assert judge_options(cluster(), {"cpus-per-task": "65"}) == []
    assert judge_options(complete(), {"cpus-per-task": "65"}) != []
    assert judge_options(cluster(), {"partition": "cpu", "cpus-per-task": "65"}) != []


def test_a_total_of_gpus_may_be_split_over_nodes() -> None:
    assert judge_options(cluster(), {"gpus": "4", "cpus-per-gpu": "32"}) == []
    assert judge_options(cluster(), {"gpus": "4", "cpus-per-gpu": "32", "nodes": "1"}) != []


def test_a_type_that_is_not_described_is_missing_only_where_slurm_was_asked() -> None:
    assert judge_options(cluster(), {"gres": "gpu:h100:1"}) == []
    assert [one.about for one in judge_options(complete(), {"gres": "gpu:h100:1"})] == ["gpu_type"]
    elsewhere = {"partitions": {**HERE["partitions"], "new": {"nodes": [{"gpus": 8, "gpu_type": "h100"}]}}}
    site = validate(Cluster, Layered(HERE | elsewhere, {}), "cluster")
    assert [one.about for one in judge_options(site, {"partition": "gpu", "gres": "gpu:h100:1"})] == [
        "gpu_type"
    ]


def test_letters_of_a_type_count_only_where_slurm_was_asked() -> None:
    assert judge_options(cluster(), {"gres": "gpu:A100:1"}) == []
    assert judge_options(complete(), {"gres": "gpu:A100:1"}) != []


def test_a_site_s_own_rules_are_judged_where_it_is_described() -> None:
    rules = {"dialect": {"forbidden": ["ntasks"], "memory": "none", "required": ["qos", "gpu_type"]}}
    site = validate(Cluster, Layered(HERE | rules, {}), "cluster")
    options = {"partition": "gpu", "gres": "gpu:1", "ntasks": "2", "mem": "4G"}
    assert {(one.about, one.option) for one in judge_script(site, options)} == {
        ("refused", "ntasks"),
        ("refused", "mem"),
        ("required", "qos"),
        ("required", "gpu_type"),
    }
    assert judge_script(site, {**options, "partition": "other"}) == []
