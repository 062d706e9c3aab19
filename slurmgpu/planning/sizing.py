"""CPUs and memory: as asked, or as a GPU's share of the node."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, NodeGroup
from slurmgpu.models.limits import Limits
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Memory
from slurmgpu.planning.placement import Placement
from slurmgpu.planning.request import count

__all__ = ["Sized", "cpus_per_node", "memory_per_node"]


class Sized(NamedTuple):
    """An amount per node (None: left to the site) and the reason for it."""

    amount: int | None
    why: str
    asked: bool = False
    """Whether the job says so: then it is never rounded down."""


def _limits(cluster: Cluster, placement: Placement) -> Limits:
    """What the partition allows; nothing is known of one on a cluster that is not described."""
    partition = cluster.partitions.get(placement.partition or "")
    return partition.limits if partition else Limits.model_construct()


def _smallest(groups: tuple[NodeGroup, ...], what: str) -> tuple[NodeGroup, float] | None:
    """The kind of node with the smallest known share per GPU: the job can then run on any of those that are known."""
    shares: list[tuple[NodeGroup, float]] = []
    for group in groups:
        whole = group.cpus if what == "cpus" else (group.memory.mib if group.memory else None)
        if whole is not None and group.gpu_count:
            shares.append((group, whole / group.gpu_count))
    return min(shares, key=lambda pair: pair[1]) if shares else None


def _describe(placement: Placement, group: NodeGroup, whole: str) -> str:
    kind = "a node" if len(placement.groups) == 1 else "the smallest node that fits"
    return f"{placement.layout.gpus_per_node} of the {group.gpus} GPUs of {kind} with {whole}"


def cpus_per_node(cluster: Cluster, resources: Resources, placement: Placement, tasks_per_node: int) -> Sized:
    """CPUs on each node, over all tasks there: as many for each task, or for each GPU where CPUs are asked by GPU.

    PlanError when no node of the partition has them, or the partition does not allow them.
    """
    sized = _cpus(cluster, resources, placement, tasks_per_node)
    if sized.amount is None:
        return sized
    gpus = placement.layout.gpus_per_node
    by_gpu = cluster.dialect.cpus == "cpus-per-gpu" and gpus > 0
    unit = gpus if by_gpu else tasks_per_node
    least = -(-tasks_per_node // unit)  # a CPU for each task
    shares = -(-sized.amount // unit) if sized.asked else sized.amount // unit
    shares = max(least, shares)
    cpus = shares * unit
    rounded = "" if cpus == sized.amount else f", in whole CPUs per {'GPU' if by_gpu else 'task'}"
    sized = sized._replace(amount=cpus, why=sized.why + rounded)
    _check_cpus(cluster, placement, cpus, sized.why)
    return sized


def _check_cpus(cluster: Cluster, placement: Placement, cpus: int, why: str) -> None:
    counts = [group.cpus for group in placement.groups]
    most = max((number for number in counts if number is not None), default=None)
    nodes = placement.layout.nodes
    limit = _limits(cluster, placement).max_cpus
    if most is not None and None not in counts and cpus > most:
        problem = f"has {most} CPUs a node"
    elif limit is not None and cpus * nodes > limit:
        problem = f"allows at most {limit} CPUs a job"
    else:
        return
    raise PlanError(
        f"{count(cpus, 'CPU')} on each of {count(nodes, 'node')} ({why}) do not fit: "
        f"partition {placement.partition!r} {problem}",
        hint="ask for fewer CPUs (cpus_per_task, cpus_per_gpu) or fewer tasks; left out, they are the GPUs' share",
    )


def _cpus(cluster: Cluster, resources: Resources, placement: Placement, tasks_per_node: int) -> Sized:
    gpus = placement.layout.gpus_per_node
    if cluster.dialect.cpus == "none" and (resources.cpus_per_task or resources.cpus_per_gpu):
        name = "cpus_per_task" if resources.cpus_per_task else "cpus_per_gpu"
        raise PlanError(
            f"resources.{name}: {getattr(resources, name)}: {cluster.name!r} gives CPUs with the GPUs and refuses a request",
            hint=f"leave {name} out",
        )
    if resources.cpus_per_task is not None:
        return Sized(
            resources.cpus_per_task * tasks_per_node,
            f"{count(tasks_per_node, 'task')} x {resources.cpus_per_task}"
            if tasks_per_node > 1
            else "as asked",
            asked=True,
        )
    if resources.cpus_per_gpu is not None:
        if not gpus:
            raise PlanError(
                "resources.cpus_per_gpu is given, and no GPU", hint="use cpus_per_task, or ask for GPUs"
            )
        return Sized(
            resources.cpus_per_gpu * gpus, f"{count(gpus, 'GPU')} x {resources.cpus_per_gpu}", asked=True
        )
    if not gpus:
        return Sized(None, "no GPU, so no share to derive: Slurm gives 1 CPU a task; set cpus_per_task")
    if not cluster.dialect.cpu_share or cluster.dialect.cpus == "none":
        return Sized(None, "the site gives CPUs with the GPUs")
    smallest = _smallest(placement.groups, "cpus")
    if smallest is None:
        return Sized(None, "the nodes' CPUs are not known: Slurm gives 1 CPU a task; set cpus_per_gpu")
    group, share = smallest
    cpus = max(1, int(share)) * gpus
    limit = _limits(cluster, placement).max_cpus
    if limit is not None and cpus * placement.layout.nodes > limit:
        return Sized(max(1, limit // placement.layout.nodes), f"the partition allows {limit} CPUs a job")
    return Sized(cpus, _describe(placement, group, f"{group.cpus} CPUs"))


def memory_per_node(cluster: Cluster, resources: Resources, placement: Placement, cpus: int | None) -> Sized:
    """Memory on each node, in MiB; 0 is all of it. PlanError when no node of the partition has as much."""
    sized = _memory(cluster, resources, placement, cpus)
    if sized.amount is None:
        return sized
    sizes = [group.memory.mib if group.memory else None for group in placement.groups]
    most = max((size for size in sizes if size is not None), default=None)
    limit = _limits(cluster, placement).max_memory
    if most is not None and None not in sizes and sized.amount > most:
        problem = f"has {Memory(most).readable} a node"
    elif limit is not None and sized.amount > limit.mib:
        problem = f"allows at most {limit.readable} a node"
    else:
        return sized
    raise PlanError(
        f"{Memory(sized.amount).readable} of memory a node ({sized.why}) do not fit: "
        f"partition {placement.partition!r} {problem}",
        hint="ask for less memory; left out, it is the GPUs' share",
    )


def _memory(cluster: Cluster, resources: Resources, placement: Placement, cpus: int | None) -> Sized:
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
        return Sized(resources.memory.mib, "as asked", asked=True)
    if resources.memory_per_gpu is not None:
        if not gpus:
            raise PlanError(
                "resources.memory_per_gpu is given, and no GPU", hint="use memory, or ask for GPUs"
            )
        return Sized(
            resources.memory_per_gpu.mib * gpus,
            f"{count(gpus, 'GPU')} x {resources.memory_per_gpu}",
            asked=True,
        )
    if resources.memory_per_cpu is not None:
        if cpus is None:
            raise PlanError(
                "resources.memory_per_cpu is given, and the CPUs are not known", hint="set cpus_per_task too"
            )
        return Sized(
            resources.memory_per_cpu.mib * cpus,
            f"{count(cpus, 'CPU')} x {resources.memory_per_cpu}",
            asked=True,
        )
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
    limit = _limits(cluster, placement).max_memory
    if limit is not None and mib > limit.mib:
        return Sized(limit.mib, f"the partition allows {limit.readable} a node")
    if mib >= 1024:  # whole GiB read better, and rounding down always fits
        mib = mib // 1024 * 1024
    return Sized(mib, _describe(placement, group, group.memory.readable if group.memory else ""))
