"""Twins of described clusters: what becomes of a profile, without Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.sandbox.configuration import Installation, gres_conf, slurm_conf
from slurmgpu.sandbox.twin import allowed_qos, declared_qos, twin_of

SHIPPED = sorted(data_folder("clusters").glob("*.yaml"))


def place(accounting: bool = True) -> Installation:
    return Installation("sandbox-x", Path("/f"), "me", "localhost", 1001, 1002, (1003,), accounting)


def profile(**said: Any) -> Cluster:
    return Cluster.model_validate_json(json.dumps({"name": "c", **said}))


def described(**partitions: dict[str, Any]) -> Cluster:
    return profile(partitions=partitions)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_profile_has_a_twin(path: Path) -> None:
    cluster = load_cluster(path)
    if not cluster.known:
        return
    shape, _ = twin_of(cluster)
    names = shape.nodes
    assert len(names) == len(set(names))
    assert [one.name for one in shape.partitions] == list(cluster.partitions)
    for partition in shape.partitions:
        described = cluster.partitions[partition.name]
        limit = described.limits.max_time
        by_nodes = described.limits.max_time_by_nodes
        longest = limit or (by_nodes[-1].max_time if by_nodes else "UNLIMITED")
        assert dict(partition.options)["MaxTime"] == str(longest)
        hostlists = partition.nodes.replace("],", "] ").split()
        assert len(hostlists) <= max(len(described.nodes), 1)
    assert "State=CLOUD" in slurm_conf(place(), shape)
    assert "File=" not in gres_conf(Path("/f"), shape)


def test_what_a_profile_does_not_say_is_assumed_and_told() -> None:
    shape, notes = twin_of(described(gpu={"nodes": [{"gpus": None, "gpu_type": "h100"}]}))
    (kind,) = shape.kinds
    assert (kind.count, kind.gres, kind.cpus, kind.memory_mib) == (4, "gpu:h100:4", 64, 262144)
    assert notes == [
        "gpu, nodes with h100: not stated, so assumed: 4 nodes, 4 GPUs each, 64 CPUs each, 256G of memory each",
        "no longest time stated, so none is set: gpu",
    ]


def test_enough_nodes_are_assumed_for_the_largest_job_allowed() -> None:
    group = {"gpus": 8}
    shape, _ = twin_of(
        described(
            small={"nodes": [group], "limits": {"max_nodes": 2}},
            large={"nodes": [group], "limits": {"max_nodes": 1024}},
            other={"nodes": [{"gpus": 4}]},
        )
    )
    assert [kind.count for kind in shape.kinds] == [1024, 4]


def test_partitions_that_describe_nodes_alike_share_them() -> None:
    first, second = {"count": 2, "gpus": 4, "gpu_type": "a100"}, {"count": 3, "gpus": 8, "gpu_type": "h100"}
    shape, notes = twin_of(
        described(a={"nodes": [first, second]}, b={"nodes": [second]}, c={"nodes": [first]})
    )
    assert [part.nodes for part in shape.partitions] == ["a100-[1-2],h100-[1-3]", "h100-[1-3]", "a100-[1-2]"]
    assert "a and b describe 3 nodes alike: taken to share them" in notes


def test_equal_nodes_named_twice_in_a_partition_are_as_many() -> None:
    group = {"count": 2, "gpus": 4, "gpu_type": "a100"}
    shape, _ = twin_of(described(a={"nodes": [group, group]}))
    assert shape.partitions[0].nodes == "a100-[1-2],a100b-[1-2]"


def test_a_type_selected_by_several_features_has_them_all() -> None:
    cluster = profile(
        gpu_types={"a100-80": {"constraint": "gpu&hbm80g"}},
        partitions={"p": {"nodes": [{"count": 1, "gpus": 4, "gpu_type": "a100-80"}]}},
    )
    assert twin_of(cluster)[0].kinds[0].features == ("gpu", "hbm80g")


def test_a_partition_for_gpus_refuses_jobs_without_one() -> None:
    shape, _ = twin_of(described(gpu={"requires_gpu": True, "nodes": [{"gpus": 4}]}))
    assert shape.qos[0].tres == ("MinTRESPerJob=gres/gpu=1",)


def test_nodes_with_several_types_of_gpu_have_them_all() -> None:
    (kind,) = twin_of(
        described(p={"nodes": [{"count": 2, "gpus": {"3g": 3, "4g": 1}, "gres": {"nvme": 900}}]})
    )[0].kinds
    assert (kind.gres, kind.prefix) == ("gpu:3g:3,gpu:4g:1,nvme:900", "3g-")


def test_cpus_come_with_gpus_where_a_job_names_none() -> None:
    nodes = {"nodes": [{"gpus": 4, "cpus": 64, "cpus_per_gpu": 8}]}
    for cpus, given in ("srun", "8"), ("cpus-per-task", None):
        shape, _ = twin_of(profile(dialect={"cpus": cpus}, partitions={"p": nodes}))
        assert dict(shape.partitions[0].options).get("DefCpuPerGPU") == given


def test_where_an_old_release_would_refuse_what_plans_for_the_site_ask_the_twin_says_so() -> None:
    nodes = {"nodes": [{"count": 4, "gpus": 4, "cpus": 64, "cpus_per_gpu": 8}]}

    def said(cpus: str, release: tuple[int, int]) -> bool:
        notes = twin_of(profile(dialect={"cpus": cpus}, partitions={"p": nodes}), release)[1]
        return any("Slurm before 22.05 refuses" in note for note in notes)

    assert said("srun", (20, 11))
    assert not said("srun", (22, 5))
    assert not said("cpus-per-task", (20, 11))


def test_shards_are_a_resource_of_the_twin_s_nodes() -> None:
    shape, _ = twin_of(described(p={"nodes": [{"gpus": 4, "gpu_type": "l40s", "shards": 16}]}))
    assert shape.kinds[0].gres == "gpu:l40s:4,shard:16"
    # Slurm counts shards only on GPUs that are files.
    assert gres_conf(Path("/f"), shape).splitlines() == [
        "NodeName=l40s-[1-4] Name=gpu Type=l40s File=/f/gpu/gpu[0-3]", "NodeName=l40s-[1-4] Name=shard Count=16"
    ]  # fmt: skip


def test_what_no_slurm_here_enforces_is_told() -> None:
    cluster = profile(
        dialect={
            "required": ["account", "partition", "qos", "gpu_type"], "memory": "none", "tasks": False,
            "forbidden": ["export"], "account": {"pattern": "p.*"},
        },
        partitions={"p": {"nodes": [{"gpus": 4, "max_cpus_per_gpu": 8, "whole_across_nodes": True}]}},
    )  # fmt: skip
    assert twin_of(cluster)[0].not_enforced == (
        "a job must name account and qos and the type of GPU",
        "a job may not name mem or mem-per-cpu or mem-per-gpu or export or ntasks-per-node",
        "how accounts are called",
        "the most CPUs or memory for a GPU",
        "jobs over several nodes take all their GPUs",
    )
    described_qos = cluster.model_copy(update={"qos": profile(qos={"q": {}}).qos})
    assert twin_of(described_qos)[0].not_enforced[0] == "a job must name account and the type of GPU"


def test_qos_become_sacctmgrs_words() -> None:
    limits = {
        "max_time": "02:00:00", "max_nodes": 2, "max_gpus": 8, "max_gpus_by_type": {"a100-80": 4}, "min_gpus": 2,
        "max_node_time": "01:30:00", "per_user": {"gpus": 16, "jobs": 1, "memory": "2T"}, "in_all": {"cpus": 64},
    }  # fmt: skip
    cluster = profile(
        qos={
            "Acc_Debug": {
                "limits": limits,
                "lifts": ["max_time"],
                "over_partition_qos": True,
                "usage_factor": 0.5,
            }
        }
    )
    (shape,) = declared_qos(cluster, {"a100-80": "a100"})
    assert shape.name == "acc_debug"
    assert shape.limits == (
        "Flags=DenyOnLimit,PartitionTimeLimit,OverPartQOS", "MaxWall=02:00:00", "MaxJobsPerUser=1", "UsageFactor=0.5",
    )  # fmt: skip
    assert shape.tres == (
        "MaxTRESPerJob=node=2,gres/gpu=8,gres/gpu:a100=4",
        "MinTRESPerJob=gres/gpu=2",
        "MaxTRESPerUser=mem=2097152,gres/gpu=16",
        "GrpTRES=cpu=64",
        "MaxTRESMinsPerJob=node=90",
    )


def test_a_qos_is_legal_where_the_site_says() -> None:
    def legal(required: bool, **partition: Any) -> tuple[str, str] | None:
        dialect = {"required": ["qos"]} if required else {}
        qos = {"everywhere": {}, "acc_only": {"partitions": ["acc"]}}
        return allowed_qos(profile(dialect=dialect, qos=qos, partitions={"p": partition, "acc": {}}), "p")

    assert legal(True) == ("AllowQos", "everywhere")
    assert legal(False) == ("AllowQos", "everywhere,normal")
    assert legal(True, qos=["Named"]) == ("AllowQos", "named")
    free = profile(partitions={"p": {"denied_qos": ["Low"]}, "q": {}})
    assert allowed_qos(free, "p") == ("DenyQos", "low")
    assert allowed_qos(free, "q") is None


def test_accounts_are_called_as_there() -> None:
    def accounts(**said: Any) -> tuple[str, ...]:
        return twin_of(profile(partitions={"p": {}}, **said))[0].accounts

    assert accounts() == ("mygroup", "other")
    assert accounts(dialect={"account": {"suffix": "_g"}}) == ("mygroup", "other", "mygroup_g", "other_g")
    assert accounts(dialect={"account": {"pattern": "p_[0-9]+", "example": "P_1"}}) == ("p_1",)


def test_a_partitions_own_qos_limits_its_jobs() -> None:
    cluster = profile(
        qos={"own": {"limits": {"max_gpus": 8, "max_cpus": 64, "max_time": 60}}},
        partitions={"P": {"own_qos": "own", "limits": {"max_gpus": 4}, "nodes": [{"gpus": 4}]}},
    )
    shape, _ = twin_of(cluster)
    assert dict(shape.partitions[0].options)["QOS"] == "partition-p"
    (qos,) = [one for one in shape.qos if one.name == "partition-p"]
    assert (qos.limits, qos.tres) == (
        ("Flags=DenyOnLimit", "MaxWall=01:00:00"),
        ("MaxTRESPerJob=cpu=64,gres/gpu=4",),
    )


def test_the_site_decides_what_becomes_of_a_job_over_a_limit() -> None:
    for said, written in [
        ({}, "ALL"),
        ({"refuses_over_limits": "no"}, "NO"),
        ({"refuses_over_limits": "any"}, "ANY"),
    ]:
        shape, _ = twin_of(profile(slurm=said, partitions={"p": {}}))
        assert dict(shape.options)["EnforcePartLimits"] == written


def test_a_twin_requeues_where_the_site_does() -> None:
    for said, written in (({}, None), ({"requeues": True}, None), ({"requeues": False}, "0")):
        shape, _ = twin_of(profile(slurm=said, partitions={"p": {}}))
        assert dict(shape.options).get("JobRequeue") == written


def test_without_accounting_no_partition_names_a_qos() -> None:
    cluster = profile(
        qos={"q": {"partitions": ["p"]}},
        partitions={"p": {"limits": {"max_gpus": 4}, "nodes": [{"count": 1, "gpus": 4}]}},
    )
    shape, _ = twin_of(cluster)
    assert "QOS=partition-p AllowQos=q,normal" in slurm_conf(place(), shape).replace(" PriorityTier", "\n")
    assert "qos" not in slurm_conf(place(accounting=False), shape).lower()


def test_limits_of_a_job_become_limits_of_slurm() -> None:
    cluster = Cluster.model_validate_json(
        '{"name": "c", "gpu_types": {"a100-80": {"gres": "a100", "constraint": "gpu80"}}, "partitions": {"P": {'
        '"limits": {"max_time": "2-00:00:00", "default_time": 30, "max_nodes": 4, "max_gpus": 16, '
        '"max_cpus": 64, "max_memory": "100G"}, "preemptible": true,'
        '"nodes": [{"count": 2, "gpus": 4, "gpu_type": "a100-80", "cpus": 32, "memory": "200G"}]}}}'
    )
    shape, _ = twin_of(cluster)
    assert dict(shape.partitions[0].options) == {
        "Default": "YES", "MaxTime": "2-00:00:00", "DefaultTime": "00:30:00", "MaxNodes": "4",
        "MaxMemPerNode": "102400", "QOS": "partition-p", "PriorityTier": "1", "PreemptMode": "REQUEUE",
    }  # fmt: skip
    assert shape.qos[0].tres == ("MaxTRESPerJob=cpu=64,gres/gpu=16",)
    assert (shape.kinds[0].gres, shape.kinds[0].features) == ("gpu:a100:4", ("gpu80",))


def test_a_profile_without_partitions_has_no_twin() -> None:
    with pytest.raises(InvalidInput, match="describes no partition"):
        twin_of(GENERIC)
