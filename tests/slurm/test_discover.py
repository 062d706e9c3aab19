"""Discovery against a real Slurm: what is declared is discovered."""

from __future__ import annotations

import getpass
import grp
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.discovery.discover import discover
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.models.cluster import Cluster, NodeGroup
from slurmgpu.models.units import Duration
from slurmgpu.sandbox.programs import slurm_release, slurm_version
from slurmgpu.sandbox.shape import NodeKind
from slurmgpu.sandbox.starting import client_env, start
from slurmgpu.sandbox.twin import twin_of
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.hostlist import expand
from tests.slurm.conftest import need_slurm
from tests.slurm.declared import (
    DeclaredSlurm,
    declared_profile,
    declared_slurm,
    differences,
    discovered_profile,
    reserve,
)
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm
GROUP = grp.getgrgid(os.getgid()).gr_name


@pytest.fixture(scope="module")
def declared(release: str | None) -> Iterator[DeclaredSlurm]:
    need_slurm()
    with declared_slurm(slurm_release(slurm_version()), getpass.getuser(), GROUP) as running:
        reserve(running, "cpu03")
        yield running


def test_what_is_declared_is_discovered_field_by_field(declared: DeclaredSlurm) -> None:
    """A hundred nodes and more, with at most ten commands."""
    slurm = Slurm(env=declared.env)
    discovered = discover(slurm, environ={})
    assert discovered.calls == len(slurm.asked) <= 10
    found = discovered_profile(discovered)
    profile = declared_profile(slurm_release(slurm_version()), group=GROUP)
    assert differences(found, profile) == []


def test_a_saved_profile_is_planned_on_and_follows_slurm_without_losing_a_hand_written_line(
    slurm: ThrowawaySlurm, tmp_path: Path
) -> None:
    tool = Tool(slurm, tmp_path)
    saved = tool("cluster", "discover", "--save", "--name", "here")
    assert (saved.returncode, saved.stdout) == (0, "")
    assert "asked Slurm 8 times in " in saved.stderr
    assert tool("cluster", "use", "here").returncode == 0
    plan = tool("plan", "--gpus", "2", "-p", "gpu", "-t", "10:00", "--json", "--", "true")
    assert json.loads(plan.stdout)["cluster"] == "here", plan
    path = tmp_path / "config" / "slurmgpu" / "clusters" / "here.yaml"
    lines = path.read_text().replace("  gpus: gres # guessed", "  gpus: gpus-per-node # as the site says")
    path.write_text(lines + "environments:\n  torch: {modules: {load: [pytorch]}} # mine\n")
    before = slurm.run(["scontrol", "update", "partition=debug", "maxtime=00:20:00"])
    try:
        done = tool("cluster", "refresh")
    finally:
        slurm.run(["scontrol", "update", "partition=debug", "maxtime=00:30:00"])
    assert before.returncode == 0
    assert done.stdout == 'partition debug: limits.max_time "00:30:00" -> "00:20:00"\n', done
    assert "  gpus: gpus-per-node # as the site says\n" in path.read_text()
    assert path.read_text().endswith("environments:\n  torch: {modules: {load: [pytorch]}} # mine\n")
    again = tool("cluster", "refresh", "--json")
    assert [change["after"] for change in json.loads(again.stdout)["changes"]] == ["00:30:00"]


@pytest.mark.parametrize("name", ["uva-afton", "uq-bunya"])
def test_a_twin_is_discovered_node_by_node_as_it_was_declared(name: str, release: str | None) -> None:
    need_slurm()
    shape, _ = twin_of(load_cluster(data_folder("clusters") / f"{name}.yaml"))
    folder = Path(tempfile.mkdtemp(prefix="twin-"))
    twin = start(folder, name="twin", cluster="twin", shape=shape, accounting=True, seconds=180)
    try:
        found = discover(Slurm(env=client_env(folder)), environ={})
    finally:
        twin.end()
    declared = {host: declared_node(kind) for kind in shape.kinds for host in kind.names}
    assert found.calls <= 10
    assert list(found.cluster.partitions) == [part.name for part in shape.partitions]
    for part in shape.partitions:
        partition, options = found.cluster.partitions[part.name], dict(part.options)
        nodes = {
            host: node for group in partition.nodes for host, node in discovered_nodes(found.cluster, group)
        }
        assert differences(nodes, {host: declared[host] for host in expand(part.nodes)}) == []
        limits = partition.limits
        assert str(limits.max_time) == str(Duration.parse(options["MaxTime"]))
        assert (limits.max_nodes or 0) == int(options.get("MaxNodes", 0))
        assert partition.own_qos == options.get("QOS")
        assert partition.preemptible == (options["PreemptMode"] != "OFF")
    assert {qos.name for qos in shape.qos} <= set(found.cluster.qos)


def declared_node(kind: NodeKind) -> dict[str, Any]:
    return {
        "gpus": {one.type or "": one.count for one in kind.gpus},
        "cpus": kind.cpus,
        "memory": kind.memory_mib,
        "features": list(kind.features),
    }


def discovered_nodes(cluster: Cluster, group: NodeGroup) -> Iterator[tuple[str, dict[str, Any]]]:
    gpus = (
        group.gpus
        if isinstance(group.gpus, dict)
        else {group.gpu_type or "": group.gpus}
        if group.gpus
        else {}
    )
    # One gres type of two sizes is two types to a job.
    by_gres = {(cluster.gpu_types[kind].gres or kind) if kind else "": count for kind, count in gpus.items()}
    assert group.memory is not None
    for host in expand(group.names or ""):
        yield host, {
            "gpus": by_gres, "cpus": group.cpus, "memory": group.memory.mib, "features": list(group.features),
        }  # fmt: skip
