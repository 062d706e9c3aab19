"""Twins of the described clusters: what the real Slurm shows of each is what its profile says, field by field."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.models.cluster import Cluster, GpuType, Limits, NodeGroup
from slurmgpu.models.units import Duration
from tests.slurm.sandbox_user import User

pytestmark = pytest.mark.slurm

# As different as profiles get: one kind of node and many, shared nodes, slices, untyped GPUs, colons in names, types by
# constraint, nothing stated of the nodes, no default partition, a thousand nodes.
CHOSEN = (
    "archer2-gpu", "cineca-leonardo", "csc-mahti", "dfki-pegasus", "idris-jean-zay", "lumi-g", "mila", "ncsa-delta",
    "nersc-perlmutter", "nhr-grete", "uchicago-midway3", "uq-bunya", "uva-afton",
)  # fmt: skip
# Slices; constraints; untyped and mixed; a site's own words.
QUICK = ("csc-mahti", "idris-jean-zay", "mila", "ncsa-delta")
# Up with accounting takes seconds: two with QOS of the site's own and limits of partitions.
CHOSEN_WITH_QOS = ("archer2-gpu", "uq-bunya")
# All of them take some minutes.
ALL = os.environ.get("SLURMGPU_TEST_ALL_TWINS") == "1"

CLUSTERS = {path.stem: load_cluster(path) for path in sorted(data_folder("clusters").glob("*.yaml"))}
DESCRIBED = [name for name, cluster in CLUSTERS.items() if cluster.known]
WITH_QOS = [name for name in DESCRIBED if CLUSTERS[name].qos]


def records(text: str) -> list[dict[str, str]]:
    """`scontrol show ... -o`: a record a line, KEY=VALUE; none of our values has a blank."""
    return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines() if line]


def nodes_shown(user: User) -> dict[str, Counter[tuple[str, ...]]]:
    """How many nodes of each kind each partition has: gres, CPUs, memory, features."""
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for node in records(user.ask("scontrol", "show", "node", "-o", name="twin")):
        # scontrol writes gpu:a100:4, older and newer releases append which sockets: gpu:a100:4(S:0-1).
        gres = re.sub(r"\(S:[^)]*\)", "", node["Gres"])
        kind = (gres, node["CPUTot"], node["RealMemory"], node["AvailableFeatures"])
        for partition in node["Partitions"].split(","):
            found.setdefault(partition, Counter())[kind] += 1
    return found


def says(group: NodeGroup, cluster: Cluster) -> dict[str, object]:
    """What a profile says of a kind of node; what it leaves open is not there."""
    types = group.gpus if isinstance(group.gpus, dict) else {group.gpu_type: group.gpus}
    gres = {
        cluster.gpu_types.get(name or "", GpuType()).gres or name: number for name, number in types.items()
    }
    said: dict[str, object] = {"features": set(group.features)}
    said |= {"types": {name for name, number in gres.items() if number != 0}}
    said |= {"count": group.count} if group.count else {}
    said |= {"gpus": group.gpu_count} if group.gpu_count is not None else {}
    said |= {"cpus": group.cpus} if group.cpus else {}
    said |= {"memory": group.memory.mib} if group.memory else {}
    said |= {"others": group.gres}
    return said


def seen(kind: tuple[str, ...], count: int) -> dict[str, object]:
    gres, cpus, memory, features = kind
    words = [one.split(":") for one in gres.split(",")] if gres != "(null)" else []
    gpus = [word for word in words if word[0] == "gpu"]
    return {
        "count": count,
        "gpus": sum(int(word[-1]) for word in gpus),
        "types": {word[1] if len(word) == 3 else None for word in gpus},
        "others": {word[0]: int(word[-1]) for word in words if word[0] != "gpu"},
        "cpus": int(cpus),
        "memory": int(memory),
        "features": set(features.split(",")) - {"(null)"},
    }


def agrees(said: dict[str, object], shown: dict[str, object]) -> bool:
    features, wanted = shown["features"], said["features"]
    assert isinstance(features, set)
    assert isinstance(wanted, set)
    # The feature that a type is selected by comes on top.
    return wanted <= features and all(shown[key] == said[key] for key in said.keys() - {"features"})


def minutes(text: str) -> Duration | None:
    return None if text in {"UNLIMITED", "NONE"} else Duration.parse(text)


@pytest.mark.parametrize(
    "name",
    DESCRIBED
    if ALL
    else [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CHOSEN],
)
def test_slurm_shows_what_the_profile_says(user: User, name: str) -> None:
    cluster = CLUSTERS[name]
    user.do("up", "--name", "twin", "--like", name, "--no-accounting")
    try:
        shown = records(user.ask("scontrol", "show", "partition", "-o", name="twin"))
        nodes = nodes_shown(user)
        listed = user.ask("sinfo", "-h", "-o", "%R %D", name="twin").splitlines()
    finally:
        user.do("down", "twin")
    assert sorted(one["PartitionName"] for one in shown) == sorted(cluster.partitions)
    defaults = [one["PartitionName"] for one in shown if one["Default"] == "YES"]
    required = "partition" in cluster.dialect.required
    assert defaults == ([] if required else [cluster.default_partition or next(iter(cluster.partitions))])
    for one in shown:
        partition = cluster.partitions[one["PartitionName"]]
        limits = partition.limits
        by_nodes = [row.max_time for row in limits.max_time_by_nodes]
        assert minutes(one["MaxTime"]) == (limits.max_time or (by_nodes[-1] if by_nodes else None))
        assert minutes(one["DefaultTime"]) == limits.default_time
        assert one["MaxNodes"] == str(limits.max_nodes or "UNLIMITED")
        if limits.max_memory:
            assert one["MaxMemPerNode"] == str(limits.max_memory.mib)
        if partition.default_memory_per_cpu:
            assert one["DefMemPerCPU"] == str(partition.default_memory_per_cpu.mib)
        defaults = (
            [f"DefCpuPerGPU={partition.default_cpus_per_gpu}"] if partition.default_cpus_per_gpu else []
        )
        memory = partition.default_memory_per_gpu
        defaults += [f"DefMemPerGPU={memory.mib}"] if memory else []
        assert one["JobDefaults"] == (",".join(defaults) or "(null)")
        whole = cluster.dialect.whole_nodes if partition.whole_nodes is None else partition.whole_nodes
        # 26.05 says it as Exclusive=NODE.
        shown_whole = one["OverSubscribe"] == "EXCLUSIVE" or one.get("Exclusive") == "NODE"
        assert shown_whole == whole
        assert one["State"] == partition.state.upper()
        assert one["PreemptMode"] == ("REQUEUE" if partition.preemptible else "OFF")
        kinds = [seen(*item) for item in nodes[one["PartitionName"]].items()]
        assert f"{one['PartitionName']} {sum(nodes[one['PartitionName']].values())}" in listed
        for group in partition.nodes:
            said = says(group, cluster)
            assert any(agrees(said, kind) for kind in kinds), (said, kinds)
        stated = [group.count for group in partition.nodes]
        if all(stated):
            assert int(one["TotalNodes"]) == sum(stated), one
        else:
            assert int(one["TotalNodes"]) >= (limits.max_nodes or 1), one


def tres_said(limits: Limits, cluster: Cluster) -> dict[str, dict[str, str]]:
    """The limits of a QOS that the profile states, by sacctmgr's fields, in its TRES."""

    def typed(types: dict[str, int]) -> dict[str, str]:
        return {
            f"gres/gpu:{cluster.gpu_types.get(name, GpuType()).gres or name}": str(most)
            for name, most in types.items()
        }

    job: dict[str, object] = {"gres/gpu": limits.max_gpus, "cpu": limits.max_cpus, "node": limits.max_nodes}
    user: dict[str, object] = {"gres/gpu": limits.per_user.gpus, "cpu": limits.per_user.cpus}
    least: dict[str, object] = {"gres/gpu": limits.min_gpus}
    return {
        "MaxTRES": {key: str(n) for key, n in job.items() if n is not None} | typed(limits.max_gpus_by_type),
        "MaxTRESPU": {key: str(n) for key, n in user.items() if n is not None}
        | typed(limits.per_user.gpus_by_type),
        "MinTRES": {key: str(n) for key, n in least.items() if n is not None},
    }


def tres_shown(row: dict[str, str]) -> dict[str, dict[str, str]]:
    words = {
        key: dict(one.split("=") for one in row[key].split(",") if one)
        for key in ("MaxTRES", "MaxTRESPU", "MinTRES")
    }
    # Memory is shown in units of its own.
    return {key: {name: n for name, n in tres.items() if name not in {"mem"}} for key, tres in words.items()}


@pytest.mark.parametrize("name", WITH_QOS if ALL else CHOSEN_WITH_QOS)
def test_slurm_has_the_qos_and_limits_of_jobs_that_the_profile_says(user: User, name: str) -> None:
    cluster = CLUSTERS[name]
    user.do("up", "--name", "twin", "--like", name, "--accounting")
    try:
        shown = records(user.ask("scontrol", "show", "partition", "-o", name="twin"))
        fields = "format=Name,MaxWall,MaxJobsPU,MaxTRES,MaxTRESPU,MinTRES"
        header, *rows = user.ask("sacctmgr", "-P", "show", "qos", fields, name="twin").splitlines()
    finally:
        user.do("down", "twin")
    found = {row.split("|")[0]: dict(zip(header.split("|"), row.split("|"), strict=True)) for row in rows}
    for qos, rule in cluster.qos.items():
        row = found[qos.lower()]
        longest = rule.limits.max_time
        assert (Duration.parse(row["MaxWall"]) if row["MaxWall"] else None) == longest
        jobs = rule.limits.per_user.jobs
        assert row["MaxJobsPU"] == ("" if jobs is None else str(jobs))
        assert tres_shown(row) == tres_said(rule.limits, cluster)
    for one in shown:
        described = cluster.partitions[one["PartitionName"]]
        own = described.limits.model_copy(update={"max_nodes": None})
        if described.own_qos is None and (any(tres_said(own, cluster).values()) or described.requires_gpu):
            if described.requires_gpu and not own.min_gpus:
                own = own.model_copy(update={"min_gpus": 1})
            assert tres_shown(found[one["QoS"]]) == tres_said(own, cluster)
        if described.qos:
            assert {qos.lower() for qos in described.qos} <= set(one["AllowQos"].split(","))
        for qos, rule in cluster.qos.items():
            if rule.partitions and one["PartitionName"] not in rule.partitions:
                assert qos.lower() not in one["AllowQos"].split(",")


# How a twin judges jobs


def judged(user: User, *options: str) -> str:
    return user.tried("sbatch", "--test-only", *options, "--wrap=true", name="twin").stderr


def test_a_twin_judges_as_the_cluster_it_is_like(user: User) -> None:
    done = user("up", "--name", "twin", "--like", "uva-afton", "--accounting")
    assert done.returncode == 0, done
    try:
        assumed = "not stated, so assumed: 4 nodes, 4 GPUs each"
        assert f"note: gpu-mig, nodes with 1g.10gb: {assumed}" in done.stderr
        assert "  not enforced a job must name account\n" in done.stdout
        assert "  not enforced a job must name account\n" in user.do("status")
        within = ["-p", "gpu", "--nodes=4", "--gres=gpu:a100:8", "--constraint=a100_80gb"]
        assert "to start at" in judged(user, *within)
        for options, why in [
            (["--gres=gpu:a100:9"], "Requested node configuration is not available"),
            (["--gres=gpu:h100:1"], "Requested node configuration is not available"),
            (["--gres=gpu:v100:1", "--mem=400G"], "Requested node configuration is not available"),
            (["--gres=gpu:v100:1", "--nodes=5"], "Node count specification invalid"),
            (["--gres=gpu:v100:1", "--time=4-0"], "Requested time limit is invalid"),
            (["--cpus-per-task=4"], "QOSMinGRES"),
        ]:
            assert why in judged(user, "-p", "gpu", *options)
        slices = ["sbatch", "-p", "gpu-mig", "--wrap=true"]
        for options, why in [
            (["--gres=gpu:1g.10gb:2"], "QOSMaxGRESPerJob"),
            (["--gres=gpu:1g.10gb:1", "--cpus-per-task=3"], "QOSMaxCpuPerJobLimit"),
            (["--gres=gpu:1g.10gb:1", "--mem=30001M"], "Memory required by task is not available"),
        ]:
            assert why in user.tried(*slices, *options, name="twin").stderr
        no_partition = user.tried("sbatch", "--gres=gpu:v100:1", "--wrap=true", name="twin")
        assert "No partition specified" in no_partition.stderr
        plan = ("plan", "-A", "mygroup", "-p", "gpu", "--gpus", "2", "--", "true")
        assert "on sandbox-twin" in user.slurmgpu(*plan, name="twin")
    finally:
        user.do("down", "twin")


def test_a_twin_has_thousands_of_nodes(user: User) -> None:
    profile = user.home / "large.yaml"
    profile.write_text(
        "name: large\ngpu_types: {h100: {memory: 80G}}\ndefault_partition: batch\npartitions:\n"
        "  batch: {limits: {max_time: 2-00:00:00, default_time: 60, max_nodes: 2000, max_gpus: 64},\n"
        "    nodes: [{count: 3000, gpus: 8, gpu_type: h100, cpus: 96, memory: 1T}]}\n"
        "  spare: {preemptible: true, nodes: [{count: 3000, gpus: 8, gpu_type: h100, cpus: 96, memory: 1T}]}\n"
    )
    done = user("up", "--name", "twin", "--like", str(profile), "--accounting")
    try:
        assert "batch and spare describe 3000 nodes alike: taken to share them" in done.stderr
        shown = user.ask("sinfo", "-h", "-o", "%P %D %G %l %L", name="twin").splitlines()
        assert shown == ["batch* 3000 gpu:h100:8 2-00:00:00 1:00:00", "spare 3000 gpu:h100:8 infinite n/a"]
        assert "to start at" in judged(user, "-N8", "--gpus-per-node=8")
        assert "Node count specification invalid" in judged(user, "-N2001")
        beyond = user.tried("sbatch", "-N9", "--gpus-per-node=8", "--wrap=true", name="twin")
        assert "QOSMaxGRESPerJob" in beyond.stderr
        waits = user.ask("sbatch", "--parsable", "-N8", "--gpus-per-node=8", "--wrap=true", name="twin")
        shown = user.ask("squeue", "-h", "-j", waits, "-o", "%T %D", name="twin")
        assert shown in {"CONFIGURING 8", "PENDING 8"}, "for nodes that never come"
    finally:
        user.do("down", "twin")


# QOS and accounts that a site declares

SITE = """
name: site
dialect:
  required: [qos]
  account: {suffix: _g}
partitions:
  acc: {nodes: [{count: 8, gpus: 4, cpus: 80}]}
  debug: {nodes: [{count: 2, gpus: 4}]}
  idle: {nodes: [{count: 2}], qos: [for_nobody]}
  big: {nodes: [{count: 4, gpus: {large: 2, small: 4}}], limits: {min_gpus: 4}}
qos:
  acc_long: {partitions: [acc, big], limits: {max_time: "3-00:00:00", max_gpus: 16}}
  acc_debug:
    partitions: [acc, debug]
    limits: {max_time: "02:00:00", max_nodes: 2, per_user: {gpus: 12}}
"""


def test_qos_and_accounts_of_a_site_are_slurms_own(user: User) -> None:
    profile = user.home / "site.yaml"
    profile.write_text(SITE)
    user.do("up", "--name", "site", "--like", str(profile), "--accounting")
    try:

        def said(*options: str) -> str:
            # Of an option that is given twice the last counts.
            submit = ("sbatch", "--parsable", "--gpus-per-node=4", *options, "--wrap=true")
            return user.tried(*submit, name="site").stderr

        assert said("-p", "acc", "-q", "acc_long", "-N4", "-t", "3-0", "-A", "mygroup_g") == ""
        assert said("-p", "debug", "-q", "acc_debug", "-N2", "-t", "60") == ""
        assert said("-p", "big", "-q", "acc_long", "--gpus-per-node=small:4") == ""
        assert "QOSMinGRES" in said("-p", "big", "-q", "acc_long", "--gpus-per-node=large:2")
        too_large = said("-p", "big", "-q", "acc_long", "-N2", "--gpus-per-node=large:3")
        assert "Requested node configuration" in too_large
        assert "QOSMaxGRESPerJob" in said("-p", "acc", "-q", "acc_long", "-N5")
        assert "QOSMaxNodePerJobLimit" in said("-p", "acc", "-q", "acc_debug", "-N3", "-t", "60")
        assert "QOSMaxWallDurationPerJobLimit" in said("-p", "acc", "-q", "acc_debug", "-t", "121")
        assert "Invalid qos" in said("-p", "debug", "-q", "acc_long")
        assert "Invalid qos" in said("-p", "acc", "-t", "60")
        assert "Invalid qos" in said("-p", "idle", "-q", "acc_long", "--gpus-per-node=0")
        assert "Invalid account" in said("-p", "acc", "-q", "acc_long", "-A", "nobodys")
    finally:
        user.do("down", "site")
