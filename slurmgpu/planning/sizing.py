"""CPUs and memory: as asked, or as a GPU's share of the node."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, NodeGroup
from slurmgpu.models.job import Resources
from slurmgpu.planning.placement import Placement

__all__ = ["Sized", "cpus_per_node", "memory_per_node"]


class Sized(NamedTuple):
    """An amount per node (None: left to the site) and the reason for it."""

    amount: int | None
    why: str


def _smallest(groups: tuple[NodeGroup, ...], what: str) -> tuple[NodeGroup, float] | None:
    """The kind of node with the smallest known share per GPU: the job can then run on any of those that are known."""
    shares: list[tuple[NodeGroup, float]] = []
    for group in groups:
        whole = group.cpus if what == "cpus" else (group.memory.mib if group.memory else None)
        if whole is not None and group.gpus:
            shares.append((group, whole / group.gpus))
    return min(shares, key=lambda pair: pair[1]) if shares else None


def _describe(placement: Placement, group: NodeGroup, whole: str) -> str:
    kind = "a node" if len(placement.groups) == 1 else "the smallest node that fits"
    return f"{placement.layout.gpus_per_node} of the {group.gpus} GPUs of {kind} with {whole}"


def cpus_per_node(cluster: Cluster, resources: Resources, placement: Placement, tasks_per_node: int) -> Sized:
    """CPUs on each node, over all tasks there."""
    gpus = placement.layout.gpus_per_node
    if cluster.dialect.cpus == "none" and (resources.cpus_per_task or resources.cpus_per_gpu):
        name = "cpus_per_task" if resources.cpus_per_task else "cpus_per_gpu"
        raise PlanError(
            f"resources.{name}: {getattr(resources, name)}: {cluster.name!r} gives CPUs with the GPUs and refuses a request",
            hint=f"leave {name} out",
        )
    if resources.cpus_per_task is not None:
        return Sized(resources.cpus_per_task * tasks_per_node, "as asked")
    if resources.cpus_per_gpu is not None:
        if not gpus:
            raise PlanError(
                "resources.cpus_per_gpu is given, and no GPU", hint="use cpus_per_task, or ask for GPUs"
            )
        return Sized(resources.cpus_per_gpu * gpus, f"{gpus} GPUs x {resources.cpus_per_gpu}")
    if not gpus:
        return Sized(None, "no GPU, so no share to derive: Slurm gives 1 CPU a task; set cpus_per_task")
    if not cluster.dialect.cpu_share or cluster.dialect.cpus == "none":
        return Sized(None, "the site gives CPUs with the GPUs")
    smallest = _smallest(placement.groups, "cpus")
    if smallest is None:
        return Sized(None, "the nodes' CPUs are not known: Slurm gives 1 CPU a task; set cpus_per_gpu")
    group, share = smallest
    cpus = max(1, int(share)) * gpus
    limit = cluster.partitions[placement.partition].limits.max_cpus if placement.partition else None
    if limit is not None and cpus * placement.layout.nodes > limit:
        return Sized(max(1, limit // placement.layout.nodes), f"the partition allows {limit} CPUs a job")
    return Sized(cpus, _describe(placement, group, f"{group.cpus} CPUs"))


def memory_per_node(cluster: Cluster, resources: Resources, placement: Placement, cpus: int | None) -> Sized:
    """Memory on each node, in MiB; 0 is all of it."""
    gpus = placement.layout.gpus_per_node
    asked = [
        name
        for name in ("memory", "memory_per_cpu", "memory_per_gpu")
        if getattr(resources, name) is not None
    ]
    if asked and cluster.dialect.memory == "none":
        raise PlanError(
            f"resources.{asked[0]}: {getattr(resources, asked[0])}: {cluster.name!r} gives memory by itself",
            hint=f"leave {asked[0]} out",
        )
    if resources.memory is not None:
        return Sized(resources.memory.mib, "as asked")
    if resources.memory_per_gpu is not None:
        if not gpus:
            raise PlanError(
                "resources.memory_per_gpu is given, and no GPU", hint="use memory, or ask for GPUs"
            )
        return Sized(resources.memory_per_gpu.mib * gpus, f"{gpus} GPUs x {resources.memory_per_gpu}")
    if resources.memory_per_cpu is not None:
        if cpus is None:
            raise PlanError(
                "resources.memory_per_cpu is given, and the CPUs are not known", hint="set cpus_per_task too"
            )
        return Sized(resources.memory_per_cpu.mib * cpus, f"{cpus} CPUs x {resources.memory_per_cpu}")
    if not cluster.dialect.memory_share or cluster.dialect.memory == "none":
        return Sized(None, "the site gives memory by itself")
    smallest = _smallest(placement.groups, "memory") if gpus else None
    if smallest is None:
        return Sized(
            None,
            "the nodes' memory is not known" if gpus else "no GPU, so no share to derive: the site's default",
        )
    group, share = smallest
    mib = int(share * gpus)
    limit = cluster.partitions[placement.partition].limits.max_memory if placement.partition else None
    if limit is not None and mib > limit.mib:
        return Sized(limit.mib, f"the partition allows {limit.readable} a node")
    if mib >= 1024:  # whole GiB read better, and rounding down always fits
        mib = mib // 1024 * 1024
    return Sized(mib, _describe(placement, group, group.memory.readable if group.memory else ""))
