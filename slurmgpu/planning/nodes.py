"""Which nodes can hold a request."""

from __future__ import annotations

import re

from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.models.units import Memory
from slurmgpu.planning.ask import Ask, Clause
from slurmgpu.planning.features import matches
from slurmgpu.planning.gpus import gpu_type_matches, memory_of, names_of
from slurmgpu.planning.request import count

__all__ = ["fitting_nodes", "suits"]


def suits(cluster: Cluster, kind: NodeGroup, ask: Ask) -> Clause | None:
    """Why nodes of a kind cannot hold a node's part of a request; None: they can, as far as is known."""
    wanted = ask.gpu_type if ask.gpus_per_node else None
    if wanted is not None and not gpu_type_matches(cluster, wanted, kind.gpu_type):
        return Clause("gpu_type", f"has no {wanted}")
    if ask.gpus_per_node and kind.gpu_count == 0:
        return Clause("gpus", "has no GPUs")
    if ask.constraint and matches(cluster, ask.constraint, kind) is False:
        return Clause("constraint", f"has no such nodes with {ask.constraint}")
    if ask.gpu_memory is not None and ask.gpus_per_node:
        has = memory_of(cluster, kind)
        if has is None or has < ask.gpu_memory.mib:
            text = Memory(has).readable if has else "unknown memory"
            return Clause("gpus", f"has GPUs of {text}, {ask.gpu_memory.readable} are asked for")
    if kind.gpu_count is not None and ask.gpus_per_node > kind.gpu_count:
        return Clause(
            "gpus", f"has {count(kind.gpu_count, 'GPU')} a node, {ask.gpus_per_node} are asked for on each"
        )
    if kind.whole_across_nodes and ask.nodes > 1 and kind.gpu_count not in (None, ask.gpus_per_node):
        return Clause(
            "gpus",
            f"gives jobs over several nodes all {kind.gpu_count} GPUs of each, {ask.gpus_per_node} are asked for",
        )
    return _too_many_cpus(kind, ask) or _too_much_memory(kind, ask) or _other_gres(cluster, kind, ask)


def _too_many_cpus(kind: NodeGroup, ask: Ask) -> Clause | None:
    detail = f" ({ask.detail})" if ask.detail else ""
    if kind.cpus is not None and ask.cpus_per_node > kind.cpus:
        return Clause(
            "cpus", f"has {count(kind.cpus, 'CPU')} a node, {ask.cpus_per_node} are asked for{detail}"
        )
    cap = kind.max_cpus_per_gpu
    if cap is not None and ask.gpus_per_node and ask.cpus_per_node > cap * ask.gpus_per_node:
        kinds = f"{kind.gpu_type} GPU" if kind.gpu_type else "GPU"
        return Clause(
            "cpus",
            f"allows {cap} CPUs for each {kinds}: {cap * ask.gpus_per_node} for {ask.gpus_per_node}, "
            f"{ask.cpus_per_node} are asked for{detail}",
        )
    return None


def _too_much_memory(kind: NodeGroup, ask: Ask) -> Clause | None:
    if not ask.memory_per_node:
        return None
    asked = Memory(ask.memory_per_node)
    if kind.memory is not None and kind.memory < asked:
        return Clause(
            "memory", f"has {kind.memory.readable} of memory a node, {asked.readable} are asked for"
        )
    cap = kind.max_memory_per_gpu
    if cap is not None and ask.gpus_per_node and cap.mib * ask.gpus_per_node < asked.mib:
        allowed = Memory(cap.mib * ask.gpus_per_node).readable
        return Clause(
            "memory",
            f"allows {cap.readable} for each GPU: {allowed} for {ask.gpus_per_node}, {asked.readable} are asked for",
        )
    return None


def _other_gres(cluster: Cluster, kind: NodeGroup, ask: Ask) -> Clause | None:
    for gres in ask.gres:
        has = kind.shards if gres.name == "shard" else kind.gres.get(gres.name)
        if has is None and cluster.slurm.release is not None:  # read from Slurm itself: there is none
            return Clause("gres", f"has no {gres.name}")
        wanted = _whole(gres.count)
        if has is not None and wanted is not None and wanted > has:
            return Clause("gres", f"has {has} {gres.name} a node, {wanted} are asked for")
    return None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def fitting_nodes(cluster: Cluster, partition: Partition, ask: Ask) -> tuple[list[NodeGroup], list[Clause]]:
    """The nodes that can hold it, and why there are not enough of them."""
    fitting: list[NodeGroup] = []
    misfits: dict[Clause, None] = {}
    for group in partition.nodes:
        # GPUs of any type count together on a node with several; those of one type alone.
        whole = group.model_copy(update={"gpus": group.gpu_count}) if isinstance(group.gpus, dict) else group
        reasons = [suits(cluster, kind, ask) for kind in (group.kinds if ask.gpu_type else (whole,))]
        if None in reasons:
            fitting.append(group)
        else:
            misfits.update(dict.fromkeys(reason for reason in reasons if reason))
    if not partition.nodes:
        return [], []
    if not fitting:
        no_type = Clause("gpu_type", f"has no {ask.gpu_type}")
        if no_type in misfits:
            if len(misfits) == 1:
                types = names_of(partition.kinds)
                return [], [
                    no_type._replace(text=f"{no_type.text} (its types: {', '.join(types) or 'none'})")
                ]
            misfits.pop(no_type)
        return [], list(misfits)
    counts = [group.count for group in fitting]
    known = [number for number in counts if number is not None]
    if len(known) == len(counts) and sum(known) < ask.nodes:
        return fitting, [Clause("nodes", f"has {sum(known)} such nodes, {ask.nodes} are needed")]
    return fitting, []
