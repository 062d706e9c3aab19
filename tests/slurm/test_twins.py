"""Twins of the described clusters: what the real Slurm shows of each is what its profile says, field by field."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.models.cluster import Cluster, GpuType, NodeGroup, Partition
from slurmgpu.models.units import Duration
from tests.slurm.sandbox_user import User, a_user

pytestmark = pytest.mark.slurm

# As different as profiles get: one kind of node and many, shared nodes, slices, untyped GPUs, colons in names, types by
# constraint, nothing stated of the nodes, no default partition, a thousand nodes.
CHOSEN = (
    "archer2-gpu", "cineca-leonardo", "csc-mahti", "dfki-pegasus", "idris-jean-zay", "lumi-g", "mila", "ncsa-delta",
    "nersc-perlmutter", "nhr-grete", "uchicago-midway3", "uq-bunya", "uva-afton",
)  # fmt: skip
# Up with accounting takes seconds, and the judging below takes another one.
CHOSEN_WITH_QOS = ("mila",)
# All of them take two minutes.
ALL = os.environ.get("SLURMGPU_TEST_ALL_TWINS") == "1"

CLUSTERS = {path.stem: load_cluster(path) for path in sorted(data_folder("clusters").glob("*.yaml"))}
DESCRIBED = [name for name, cluster in CLUSTERS.items() if cluster.known]


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with a_user() as someone:
        yield someone


def limited_by_qos(partition: Partition) -> bool:
    return bool(partition.limits.max_gpus or partition.limits.max_cpus or partition.requires_gpu)


WITH_QOS = [name for name in DESCRIBED if any(map(limited_by_qos, CLUSTERS[name].partitions.values()))]


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
    known = cluster.gpu_types.get(group.gpu_type or "", GpuType())
    gpu_type = known.gres or group.gpu_type
    said: dict[str, object] = {"type": gpu_type if group.gpus != 0 else None, "features": set(group.features)}
    said |= {"count": group.count} if group.count else {}
    said |= {"gpus": group.gpus} if group.gpus is not None else {}
    said |= {"cpus": group.cpus} if group.cpus else {}
    said |= {"memory": group.memory.mib} if group.memory else {}
    return said


def seen(kind: tuple[str, ...], count: int) -> dict[str, object]:
    gres, cpus, memory, features = kind
    words = gres.split(":") if gres != "(null)" else ["gpu", "0"]
    return {
        "count": count,
        "gpus": int(words[-1]),
        "type": words[1] if len(words) == 3 else None,
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


@pytest.mark.parametrize("name", DESCRIBED if ALL else CHOSEN)
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
        assert minutes(one["MaxTime"]) == limits.max_time
        assert minutes(one["DefaultTime"]) == limits.default_time
        assert one["MaxNodes"] == str(limits.max_nodes or "UNLIMITED")
        assert one["MaxMemPerNode"] == str(limits.max_memory.mib if limits.max_memory else "UNLIMITED")
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


@pytest.mark.parametrize("name", WITH_QOS if ALL else CHOSEN_WITH_QOS)
def test_slurm_limits_gpus_and_cpus_of_a_job_as_the_profile_says(user: User, name: str) -> None:
    cluster = CLUSTERS[name]
    user.do("up", "--name", "twin", "--like", name, "--accounting")
    try:
        shown = records(user.ask("scontrol", "show", "partition", "-o", name="twin"))
        fields = "format=name,maxtresperjob,mintresperjob,flags"
        listed = user.ask("sacctmgr", "-n", "-P", "show", "qos", fields, name="twin")
    finally:
        user.do("down", "twin")
    limits = {qos: rest for qos, *rest in (line.split("|") for line in listed.splitlines())}
    for one in shown:
        partition = cluster.partitions[one["PartitionName"]]
        if not limited_by_qos(partition):
            assert one["QoS"] == "N/A"
            continue
        most, least, flags = limits[one["QoS"]]
        tres = dict(part.split("=") for part in most.split(",") if part)
        assert tres.get("gres/gpu") == (str(partition.limits.max_gpus) if partition.limits.max_gpus else None)
        assert tres.get("cpu") == (str(partition.limits.max_cpus) if partition.limits.max_cpus else None)
        assert least == ("gres/gpu=1" if partition.requires_gpu else "")
        assert flags == "DenyOnLimit"


def test_a_profile_that_describes_no_nodes_has_no_twin(user: User) -> None:
    refused = user("up", "--name", "twin", "--like", "ethz-euler")
    assert refused.returncode == 2
    assert "describes no partition" in refused.stderr


# How a twin judges jobs


def judged(user: User, *options: str, name: str = "twin") -> str:
    command = ["sbatch", "--test-only", *options, "--wrap=true"]
    return user("exec", "--name", name, "--", *command).stderr


def test_a_twin_judges_as_the_cluster_it_is_like(user: User) -> None:
    done = user("up", "--name", "twin", "--like", "uva-afton", "--accounting")
    assert done.returncode == 0, done
    try:
        assert (
            "note: gpu-mig, nodes with 1g.10gb: not stated, so assumed: 4 nodes, 4 GPUs each" in done.stderr
        )
        assert "  not enforced a job must give --account\n" in done.stdout
        assert "  not enforced a job must give --account\n" in user.do("status")
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
            assert why in user("exec", "--name", "twin", "--", *slices, *options).stderr
        no_partition = user("exec", "--name", "twin", "--", "sbatch", "--gres=gpu:v100:1", "--wrap=true")
        assert "No partition specified" in no_partition.stderr
        plan = ("plan", "-A", "mygroup", "-p", "gpu", "--gpus", "2", "--", "true")
        assert "on sandbox-twin" in user.slurmgpu(*plan, name="twin")
    finally:
        user.do("down", "twin")


def test_a_submitted_job_waits_for_a_node_that_never_comes(user: User) -> None:
    user.do("up", "--name", "twin", "--like", "lumi-g", "--no-accounting")
    try:
        submit = ("sbatch", "--parsable", "-p", "standard-g", "-N1024", "--gpus-per-node=8", "--wrap=true")
        job = user.ask(*submit, name="twin")
        states = ("squeue", "-h", "-j", job, "-o", "%T %D")
        assert user.ask(*states, name="twin") in {"CONFIGURING 1024", "PENDING 1024"}
        beyond = user(
            "exec", "--name", "twin", "--", *submit[:4], "-N1025", "--gpus-per-node=8", "--wrap=true"
        )
        assert "Node count specification invalid" in beyond.stderr
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
        beyond = user("exec", "--name", "twin", "--", "sbatch", "-N9", "--gpus-per-node=8", "--wrap=true")
        assert "QOSMaxGRESPerJob" in beyond.stderr
    finally:
        user.do("down", "twin")


# QOS and accounts that a site declares

DECLARED = """
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.units import Duration
from slurmgpu.sandbox.life import bring_up
from slurmgpu.sandbox.qos import DeclaredQos
from slurmgpu.sandbox.twin import twin_of

cluster = Cluster.model_validate_json(
    '{"name": "site", "dialect": {"required": ["qos"]}, "partitions": {'
    '"acc": {"nodes": [{"count": 8, "gpus": 4, "cpus": 80}]}, "debug": {"nodes": [{"count": 2, "gpus": 4}]}, '
    '"idle": {"nodes": [{"count": 2}]}}}'
)
qos = [
    DeclaredQos(name="acc_long", max_time=Duration.parse(4320), max_gpus=16, partitions=("acc",)),
    DeclaredQos(
        name="acc_debug", max_time=Duration.parse(120), max_nodes=2, max_gpus_per_user=12, partitions=("acc", "debug")
    ),
]
shape, _ = twin_of(cluster, qos=qos, accounts=["ehpc01", "bsc99"])
bring_up("declared", shape, cluster, accounting=True)
"""


def test_declared_qos_and_accounts_are_slurms_own(user: User) -> None:
    subprocess.run([sys.executable, "-c", DECLARED], env=user.env, check=True, timeout=120)
    try:
        submit = ("sbatch", "--parsable", "--gpus-per-node=4")

        def said(*options: str) -> str:
            return user("exec", "--name", "declared", "--", *submit, *options, "--wrap=true").stderr

        assert said("-p", "acc", "-q", "acc_long", "-N4", "-t", "3-0", "-A", "bsc99") == ""
        assert said("-p", "debug", "-q", "acc_debug", "-N2", "-t", "60") == ""
        assert "QOSMaxGRESPerJob" in said("-p", "acc", "-q", "acc_long", "-N5")
        assert "QOSMaxNodePerJobLimit" in said("-p", "acc", "-q", "acc_debug", "-N3", "-t", "60")
        assert "QOSMaxWallDurationPerJobLimit" in said("-p", "acc", "-q", "acc_debug", "-t", "121")
        assert "Invalid qos" in said("-p", "debug", "-q", "acc_long")
        assert "Invalid qos" in said("-p", "acc", "-t", "60")
        assert "Invalid qos" in said("-p", "idle", "-q", "acc_long", "--gpus-per-node=0")
        assert "Invalid account" in said("-p", "acc", "-q", "acc_long", "-A", "nobodys")
    finally:
        user.do("down", "declared")
