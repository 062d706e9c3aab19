"""The parts of discovery: host lists, gres, GPU types, limits, what a login node shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.clusters.discover import look_around, relevant_modules
from slurmgpu.lines.slurm import abbreviate, expand
from slurmgpu.models.units import Duration, Memory
from slurmgpu.slurm import show
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.describe import limits_of, preemptible_qos, qos_rule, tres
from slurmgpu.slurm.describe_nodes import (
    Kind,
    gpu_types_of,
    groups_of,
    kinds_of,
    memory_in_name,
    partition_of,
    preemptible_partitions,
    read_gres,
    well_known_memory,
)
from tests.recorded import Replay, said

# Host lists


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]), ("n[1-3]", ["n1", "n2", "n3"]), ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]), ("a[1,3-4],login", ["a1", "a3", "a4", "login"]),
        ("r[1-2]c[01-02]-ib", ["r1c01-ib", "r1c02-ib", "r2c01-ib", "r2c02-ib"]),
        ("gpu-a[1-2]-x[7]", ["gpu-a1-x7", "gpu-a2-x7"]), ("", []),
    ],
)  # fmt: skip
def test_host_lists_expand(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


def test_an_absurd_range_is_not_expanded() -> None:
    assert expand("n[1-99999999],m[1-500][1-500]") == ["n1-99999999"]


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,3}(-ib)?", fullmatch=True), max_size=40))
def test_an_abbreviated_list_expands_to_the_same_hosts(hosts: list[str]) -> None:
    assert sorted(expand(abbreviate(hosts))) == sorted(set(hosts))


def test_names_are_abbreviated_as_slurm_does() -> None:
    assert abbreviate(f"n{number:03}" for number in range(1, 101)) == "n[001-100]"
    assert abbreviate(["n9", "n10", "n12", "login"]) == "login,n[9-10,12]"
    assert abbreviate(["n1"]) == "n1"


# Records


def test_free_text_in_a_node_cannot_change_what_is_read_of_it() -> None:
    line = "NodeName=n1 State=IDLE Gres=gpu:2 Comment=see State=DOWN Reason=Gres=gpu:9 [root@1]\n"
    (record,) = show.records(line, ("NodeName", "State", "Gres"))
    assert record == {"NodeName": "n1", "State": "IDLE", "Gres": "gpu:2"}


def test_a_qos_description_with_the_separator_stays_whole() -> None:
    fields = ["x"] + [""] * (len(show.QOS_FIELDS) - 2) + ["long | runs"]
    (row,) = show.rows(f"a banner\n{'|'.join(fields)}\n", show.QOS_FIELDS)
    assert (row["name"], row["description"]) == ("x", "long | runs")


# Gres and types


@pytest.mark.parametrize(
    ("text", "gpus", "types", "shards", "others"),
    [
        ("gpu:a100:8(S:0-1)", 8, {"a100": 8}, None, {}),
        ("gpu:a100:2(S:0),gpu:a30:2(S:1),nvme:3500", 4, {"a100": 2, "a30": 2}, None, {"nvme": 3500}),
        ("gpu:4", 4, {}, None, {}),
        ("gpu:2,gpu:a100:2", 4, {}, None, {}),
        ("gpu:l40s:4(S:0,1),shard:l40s:16", 4, {"l40s": 4}, 16, {}),
        ("gpu:1g.10gb:7,mps:400", 7, {"1g.10gb": 7}, None, {"mps": 400}),
        ("lscratch:no_consume:2K,craynetwork:4", 0, {}, None, {"lscratch": 2048, "craynetwork": 4}),
        ("gpu", 1, {}, None, {}),
        ("(null)", 0, {}, None, {}),
        ("", 0, {}, None, {}),
    ],
)
def test_gres_of_a_node_are_read(
    text: str, gpus: int, types: dict[str, int], shards: int | None, others: dict[str, int]
) -> None:
    found = read_gres(text)
    assert (found.gpus, found.types, found.shards, found.others) == (gpus, types, shards, others)


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        ("a100_80gb", 80), ("nvidia_a100_80gb_pcie_3g.40gb", 40), ("1g.10gb", 10), ("v100-32", 32), ("80g", 80),
        ("tesla_v100-sxm2-32gb", 32), ("a100", None), ("l40s", None), ("gpu-1", None), ("rack-12", 12),
    ],
)  # fmt: skip
def test_memory_in_a_name_is_read(name: str, gb: int | None) -> None:
    assert memory_in_name(name) == gb


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        ("a100", 40), ("A100", 40), ("nvidia_h100_nvl", 80), ("a10", 24), ("a16", 16), ("rtx_2080_ti", 8),
        ("quadro_rtx_6000", 24), ("nvidia_rtx_a6000", 48), ("mi250x", 64), ("gh200", 96), ("k1000", None),
        ("a1000", None), ("big", None), ("max1550", 128), ("intel_data_center_gpu_max_1100", 48),
    ],
)  # fmt: skip
def test_a_well_known_model_is_taken_at_its_smallest(name: str, gb: int | None) -> None:
    found = well_known_memory(name)
    assert (found[0] if found else None) == gb


def kind(gres: str, *features: str) -> Kind:
    return Kind(gres, 64, None, 256000, features)


def test_one_gres_type_of_two_sizes_becomes_two_types_told_apart_by_a_feature() -> None:
    small, large = kind("gpu:a100:8", "40gb"), kind("gpu:a100:8", "dgx", "a100_80gb")
    found = gpu_types_of([small, large])
    assert found.types["a100"].memory == Memory(40 * 1024)
    assert found.types["a100-80"].constraint == "a100_80gb"
    assert found.types["a100-80"].gres == "a100"
    assert found.of_kind == {large: "a100-80"}
    assert set(found.guessed) == {"gpu_types.a100.memory", "gpu_types.a100-80"}


def test_gpus_without_a_type_are_named_by_a_feature_that_names_a_model() -> None:
    found = gpu_types_of([kind("gpu:4", "rhel9", "v100"), kind("gpu:4", "other")])
    assert found.by_constraint
    assert found.types["v100"].constraint == "v100"
    assert "gpu_types.v100.constraint" in found.guessed


def test_a_type_that_nobody_knows_has_no_memory() -> None:
    found = gpu_types_of([kind("gpu:big:4")])
    assert found.types["big"].memory is None
    assert found.guessed == {}


# Nodes


NODE = {
    "NodeName": "n1", "Sockets": "2", "CoresPerSocket": "16", "ThreadsPerCore": "2", "CPUTot": "64",
    "RealMemory": "250000", "State": "IDLE",
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "whole_cores", "cpus", "threads", "memory"),
    [
        ({}, True, 64, 2, 250000),
        ({}, False, 64, None, 250000),  # CR_CPU: single threads are given out
        ({"CPUTot": "32"}, True, 32, None, 250000),  # CPUs declared as cores
        ({"CoreSpecCount": "2"}, True, 60, 2, 250000),
        ({"CoreSpecCount": "2", "CPUEfctv": "60"}, True, 60, 2, 250000),
        ({"MemSpecLimit": "10000"}, True, 64, 2, 240000),
        ({"RealMemory": "1"}, True, 64, 2, None),
    ],
)
def test_cpus_and_memory_are_what_a_job_can_have(
    more: dict[str, str], whole_cores: bool, cpus: int, threads: int | None, memory: int | None
) -> None:
    ((found, _),) = kinds_of([NODE | more], whole_cores=whole_cores, spec_usable=False).values()
    assert (found.cpus, found.threads_per_core, found.memory_mib) == (cpus, threads, memory)


def test_nodes_stand_in_the_order_in_which_slurm_takes_them_by_weight_and_then_by_name() -> None:
    records = [
        {"NodeName": name, "CPUTot": cpus, "Weight": weight}
        for name, cpus, weight in [
            ("a1", "64", "10"),
            ("b1", "32", "1"),
            ("b2", "32", "10"),
            ("c1", "16", "1"),
        ]
    ]
    kinds = kinds_of(records, whole_cores=False, spec_usable=False)
    groups = groups_of({"Nodes": "a1,b[1-2],c1"}, kinds, {}, gpus_counted=True)
    assert [group.names for group in groups.nodes] == ["b[1-2]", "c1", "a1"]


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE", True), ("MIXED", True), ("ALLOCATED", True), ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+CLOUD+POWER", True), ("ALLOCATED+COMPLETING", True), ("IDLE+PLANNED", True), ("IDLE~", True),
        ("DOWN*", False), ("DOWN+CLOUD", False), ("IDLE+DRAIN", False), ("MIXED*+DRAIN", False), ("UNKNOWN", False),
    ],
)  # fmt: skip
def test_nodes_without_power_are_there_and_drained_ones_are_remarked(state: str, usable: bool) -> None:
    kinds = kinds_of([NODE | {"State": state}], whole_cores=True, spec_usable=False)
    groups = groups_of({"Nodes": "n1"}, kinds, {}, gpus_counted=True)
    assert groups.nodes[0].count == 1
    assert (groups.remarks == [""]) is usable


def test_nodes_in_the_cloud_that_are_not_shown_get_the_rest_of_the_partition() -> None:
    kinds = kinds_of([NODE | {"Gres": "gpu:a30:2"}], whole_cores=True, spec_usable=False)
    partition = {"Nodes": "n[1-3]", "TotalCPUs": "192", "TRES": "cpu=192,mem=750000M,node=3,gres/gpu=6"}
    groups = groups_of(partition, kinds, {}, gpus_counted=True)
    assert [(one.names, one.cpus, one.gpus) for one in groups.nodes] == [("n1", 64, 2), ("n[2-3]", 64, 2)]
    assert groups.unseen == 2
    assert set(groups.guessed) == {"nodes.1.cpus", "nodes.1.gpus"}


# Partitions


def test_whole_nodes_are_seen_in_every_release() -> None:
    for words in ({"OverSubscribe": "EXCLUSIVE"}, {"OverSubscribe": "NO", "Exclusive": "NODE"}):
        assert partition_of(words, {}, (), preemptible=False).whole_nodes
    assert partition_of({}, {"SelectType": "select/linear"}, (), preemptible=False).whole_nodes
    shared = partition_of({"OverSubscribe": "NO", "Exclusive": "NO"}, {}, (), preemptible=False)
    assert shared.whole_nodes is None


def test_what_a_partition_does_not_say_slurm_conf_says() -> None:
    config = {"MaxMemPerNode": "64000", "DefMemPerCPU": "2000", "JobDefaults": "DefCpuPerGPU=8"}
    found = partition_of(
        {"MaxMemPerNode": "UNLIMITED", "JobDefaults": "(null)"}, config, (), preemptible=False
    )
    assert found.limits.max_memory == Memory(64000)
    assert found.default_memory_per_cpu == Memory(2000)
    assert found.default_cpus_per_gpu == 8
    own = partition_of({"MaxMemPerCPU": "4000", "DefMemPerNode": "1000"}, config, (), preemptible=False)
    assert (own.limits.max_memory, own.limits.max_memory_per_cpu) == (None, Memory(4000))
    assert own.default_memory_per_cpu is None


@pytest.mark.parametrize(
    ("weights", "gpu", "types", "memory"),
    [
        ("CPU=1.0,Mem=0.25G,GRES/gpu=32.0", 32.0, {}, 0.25),
        ("Mem=0.5,GRES/gpu:a100=2,GRES/gpu=1", 1.0, {"a100": 3.0}, 512.0),
        ("Mem=256T", 0.0, {}, 0.25),
    ],
)
def test_billing_weights_have_units(weights: str, gpu: float, types: dict[str, float], memory: float) -> None:
    record = {"TRESBillingWeights": weights}
    found = partition_of(record, {"PriorityFlags": "MAX_TRES"}, (), preemptible=False).billing
    assert (found.gpu, found.gpu_by_type, found.memory, found.combine) == (gpu, types, memory, "max")


def test_only_a_higher_tier_on_the_same_nodes_preempts() -> None:
    def record(name: str, nodes: str, tier: str, mode: str = "REQUEUE") -> dict[str, str]:
        return {"PartitionName": name, "Nodes": nodes, "PriorityTier": tier, "PreemptMode": mode}

    records = [
        record("high", "n[1-4]", "10"),
        record("low", "n[3-6]", "1"),
        record("apart", "m[1-4]", "1"),
        record("spared", "n[1-4]", "1", "OFF"),
    ]
    config = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    assert preemptible_partitions(records, config) == {"low"}
    assert preemptible_partitions(records, {"PreemptType": "preempt/none"}) == set()


# QOS


def row(**given: str) -> dict[str, str]:
    empty = dict.fromkeys(show.QOS_FIELDS, "")
    return empty | {"name": "x", "usagefactor": "1.000000", "preemptmode": "cluster"} | given


def test_tres_are_read_by_name() -> None:
    assert tres("cpu=256,mem=2000G,gres/gpu:a100=4,node=-1,fs/disk=x") == {
        "cpu": 256, "mem": 2048000, "gres/gpu:a100": 4,
    }  # fmt: skip


def test_the_tightest_of_several_limits_counts() -> None:
    found = limits_of(
        row(grptres="gres/gpu=10,cpu=64", maxtrespa="gres/gpu=4", grpjobs="9", maxjobspa="3"),
        {"grptres": "cpu=32", "grpjobs": "5"},
    )
    assert (found.in_all.gpus, found.in_all.cpus, found.in_all.jobs) == (4, 32, 3)


def test_a_qos_limit_of_nodes_times_minutes_is_read() -> None:
    assert limits_of(row(maxtresmins="cpu=9,node=90")).max_node_time == Duration.parse("01:30:00")
    assert limits_of(row(maxtresmins="cpu=9")).max_node_time is None


def test_no_gpu_at_all_is_a_limit_too() -> None:
    assert limits_of(row(maxtres="gres/gpu=0")).max_gpus == 0


def test_qos_are_preemptible_by_others_unless_their_mode_says_no() -> None:
    rows = [row(name="normal", preempt="low,off"), row(name="low"), row(name="off", preemptmode="off")]
    config = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
    assert preemptible_qos(rows, config) == {"low"}
    assert preemptible_qos(rows, config | {"PreemptMode": "OFF"}) == set()
    assert preemptible_qos(rows, {"PreemptType": "preempt/none"}) == set()


def test_flags_say_which_limits_of_the_partition_a_qos_lifts() -> None:
    found = qos_rule(row(flags="PartitionMaxNodes,DenyOnLimit,PartitionTimeLimit"), preemptible=False)
    assert found.lifts == ("max_nodes", "max_time")
    assert found.usage_factor is None


# The login node

AVAILABLE = """\
/usr/share/modulefiles:
cuda/
cuda/11.8
cuda/12.4(default)
cuda/9.2
gcc/13.2
PyTorch/2.9.0-foss-2024a
python/3.12 <L>
Anaconda3/2024.02-1
pythia/8
apptainer
bash-completion/x
"""


def test_of_the_modules_those_are_listed_that_pytorch_jobs_want() -> None:
    assert relevant_modules(AVAILABLE) == (
        "apptainer", "Anaconda3/2024.02-1", "cuda/12.4", "cuda/11.8", "cuda/9.2", "python/3.12",
        "PyTorch/2.9.0-foss-2024a",
    )  # fmt: skip


def test_of_many_versions_the_newest_five_are_listed() -> None:
    found = relevant_modules("\n".join(f"cuda/12.{minor}" for minor in range(12)))
    assert found == ("cuda/12.11", "cuda/12.10", "cuda/12.9", "cuda/12.8", "cuda/12.7")


def test_a_login_node_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "ada").mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text("#!/bin/sh\n")
    (programs / "apptainer").chmod(0o755)
    replay = Replay(**{"/opt/lmod": said(stderr=AVAILABLE)})
    environ = {"LMOD_CMD": "/opt/lmod", "PATH": str(programs)}
    found = look_around(environ, "ada", root=tmp_path, run=replay)
    software = found.software
    assert (software.module_system, software.modules[0]) == ("lmod", "apptainer")
    assert software.containers == ("apptainer",)
    assert software.scratch == "/scratch/$USER"
    assert set(found.guessed) == {"software.scratch"}


def test_a_variable_of_the_site_says_where_scratch_is(tmp_path: Path) -> None:
    (tmp_path / "gpfs" / "ada").mkdir(parents=True)
    found = look_around({"SCRATCH": "/gpfs/ada", "WORK": "/nosuch"}, "ada", root=tmp_path)
    assert found.software.scratch == "$SCRATCH"


def test_a_module_system_that_hangs_is_given_up(tmp_path: Path) -> None:
    slow = Answer(("x",), None, "", "cuda/12.4\n")
    found = look_around({"LMOD_CMD": "/l"}, "ada", root=tmp_path, run=Replay(**{"/l": slow}))
    assert found.hidden["software.modules"] == "the module system did not answer in 20 s"
    assert found.software.modules == ("cuda/12.4",)


def test_a_bare_machine_shows_nothing_and_says_what_is_a_guess(tmp_path: Path) -> None:
    found = look_around({}, "ada", root=tmp_path)
    assert found.software.module_system == "none"
    assert set(found.guessed) == {"software.module_system"}
