"""CPUs and memory: as asked, or as a GPU's share of the node, rounded the site's way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, Limits, NodeGroup, Partition
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Memory
from slurmgpu.planning.accounts import given_by_site
from slurmgpu.planning.request import Layout

__all__ = [
    "Setting",
    "Sized",
    "cpus_asked",
    "cpus_counted",
    "cpus_per_node",
    "default_memory",
    "memory_asked",
    "memory_per_node",
]


class Setting(NamedTuple):
    """Where something is sized: the layout, the kinds of node that hold it, and the limits there."""

    layout: Layout
    groups: tuple[NodeGroup, ...]
    limits: Limits


class Sized(NamedTuple):
    """An amount per node (None: left to the site) and the reason for it."""

    amount: int | None
    why: str
    asked: bool = False
    """True if the job says so: then it is never rounded down."""
    counted: bool = False
    """True if the job's figure is multiplied: so many tasks or GPUs times so much."""


def _share(group: NodeGroup, what: str) -> float | None:
    """Return the share of a GPU: the site's own, or the node's through its GPUs; never over the site's cap."""
    if what == "cpus":
        own, whole, cap = group.cpus_per_gpu, group.cpus, group.max_cpus_per_gpu
        unit = group.unit.cpus / group.unit.gpus if group.unit and group.unit.cpus else None
    else:
        own, whole, cap = (
            None if memory is None else memory.mib
            for memory in (group.memory_per_gpu, group.memory, group.max_memory_per_gpu)
        )
        unit = group.unit.memory.mib / group.unit.gpus if group.unit and group.unit.memory else None
    share = own or unit or (whole / group.gpu_count if whole and group.gpu_count else cap)
    return share if share is None or cap is None else min(share, cap)


def _smallest(groups: tuple[NodeGroup, ...], what: str) -> tuple[NodeGroup, float] | None:
    """Return the kind of node with the smallest known share per GPU: the job can then run on any of those that are known."""
    shares = [(group, share) for group in groups if (share := _share(group, what)) is not None]
    return min(shares, key=lambda pair: pair[1]) if shares else None


def _describe(place: Setting, group: NodeGroup, whole: str, own: str | None) -> str:
    gpus = place.layout.gpus_per_node
    if own is not None:
        return f"{count(gpus, 'GPU')} x {own}, a GPU's share there"
    least = "" if len(place.groups) == 1 else " (the node type with the least per GPU)"
    return f"{gpus} of {count(group.gpu_count or 0, 'GPU')}, so {gpus}/{group.gpu_count} of a node's {whole}{least}"


def cpus_asked(resources: Resources, layout: Layout, tasks_per_node: int) -> Sized | None:
    """CPUs on each node as the job asks for them; None when it does not."""
    if resources.cpus_per_task is not None:
        each = resources.cpus_per_task
        several = tasks_per_node > 1
        why = f"{count(tasks_per_node, 'task')} x {each}" if several else "as asked"
        return Sized(each * tasks_per_node, why, asked=True, counted=several)
    if resources.cpus_per_gpu is not None:
        gpus = layout.gpus_per_node
        if not gpus:
            raise PlanError(
                "resources.cpus_per_gpu is given, and no GPU", hint="use cpus_per_task, or ask for GPUs"
            )
        why = f"{count(gpus, 'GPU')} x {resources.cpus_per_gpu}"
        return Sized(resources.cpus_per_gpu * gpus, why, asked=True, counted=True)
    return None


def _check_taken(cluster: Cluster, resources: Resources, fields: Mapping[str, str]) -> None:
    """PlanError where a field asks for what the site gives by itself."""
    refused = given_by_site(cluster)
    for name, option in fields.items():
        if getattr(resources, name) is not None and option in refused:
            raise PlanError(
                f"resources.{name}: {getattr(resources, name)}: {cluster.name!r} {refused[option]}",
                hint=f"leave {name} out",
            )


def cpus_per_node(cluster: Cluster, resources: Resources, place: Setting, tasks_per_node: int) -> Sized:
    """CPUs on each node, over all tasks there: as many for each task, or for each GPU where CPUs are asked by GPU."""
    _check_taken(cluster, resources, {"cpus_per_task": "cpus-per-task", "cpus_per_gpu": "cpus-per-gpu"})
    sized = cpus_asked(resources, place.layout, tasks_per_node) or _cpus_share(cluster, resources, place)
    if sized.amount is None:
        return sized
    gpus = place.layout.gpus_per_node
    by_gpu = cluster.dialect.cpus == "cpus-per-gpu" and gpus > 0
    unit = gpus if by_gpu else tasks_per_node
    least = -(-tasks_per_node // unit)  # a CPU for each task
    shares = -(-sized.amount // unit) if sized.asked else sized.amount // unit
    cpus = max(least, shares) * unit
    rounded = "" if cpus == sized.amount else f", in whole CPUs per {'GPU' if by_gpu else 'task'}"
    return sized._replace(amount=cpus, why=sized.why + rounded)


def _cpus_share(cluster: Cluster, resources: Resources, place: Setting) -> Sized:
    gpus = place.layout.gpus_per_node
    if not gpus:
        return Sized(None, "no GPU, so no share to derive: Slurm gives 1 CPU a task; set cpus_per_task")
    if not cluster.dialect.cpu_share or cluster.dialect.cpus == "none":
        return Sized(None, "the site gives CPUs with the GPUs")
    smallest = _smallest(place.groups, "cpus")
    if smallest is None:
        return Sized(None, "the nodes' CPUs are not known: Slurm gives 1 CPU a task; set cpus_per_gpu")
    group, share = smallest
    cpus = max(1, int(share)) * gpus
    limits = place.limits
    totals = [one for one in (limits.max_cpus, limits.per_user.cpus, limits.in_all.cpus) if one]
    most = [total // place.layout.nodes for total in totals]
    most += [limits.max_cpus_per_node] if limits.max_cpus_per_node else []
    if most and cpus > min(most):
        cpus, why = max(1, min(most)), f"limits there allow {count(max(1, min(most)), 'CPU')} a node"
        return _with_memory_for(resources, place, Sized(cpus, why))
    own = f"{int(share)} CPUs" if group.cpus_per_gpu or (group.unit and group.unit.cpus) else None
    if own is None and group.max_cpus_per_gpu == share:
        own = f"{int(share)} CPUs at most"
    return _with_memory_for(resources, place, Sized(cpus, _describe(place, group, f"{group.cpus} CPUs", own)))


def _with_memory_for(resources: Resources, place: Setting, cpus: Sized) -> Sized:
    """Return CPUs that were derived, or fewer where a node has not the memory that is asked for with each."""
    each, gpus = resources.memory_per_cpu, place.layout.gpus_per_node
    if each is None or not each.mib or cpus.amount is None:
        return cpus
    room = [group.memory.mib for group in place.groups if group.memory]
    room += [group.max_memory_per_gpu.mib * gpus for group in place.groups if group.max_memory_per_gpu]
    room += [place.limits.max_memory.mib] if place.limits.max_memory else []
    most = min(room, default=each.mib * cpus.amount) // each.mib
    if most >= cpus.amount:
        return cpus
    return Sized(max(1, most), f"a node's memory holds {each} for {count(max(1, most), 'CPU')}")


def cpus_counted(cluster: Cluster, place: Setting, cpus: Sized, tasks_per_node: int) -> int | None:
    """Return the CPUs that a node gives, by which memory is counted; None: the site gives them with the GPUs, and how many is not
    known. A task that asks for none gets one."""
    given_by_site = not cluster.dialect.cpu_share or cluster.dialect.cpus == "none"
    if cpus.amount is None and not (place.layout.gpus_per_node and given_by_site):
        return tasks_per_node
    return cpus.amount


def memory_asked(resources: Resources, layout: Layout, cpus: int | None) -> Sized | None:
    """Memory on each node as the job asks for it, in MiB (0: all of it; its amount None: by the CPU, and there are
    ``cpus`` None: not known how many); None when it does not.
    """
    gpus = layout.gpus_per_node
    if resources.memory is not None:
        return Sized(resources.memory.mib, "as asked", asked=True)
    if resources.memory_per_gpu is not None:
        if not gpus:
            raise PlanError(
                "resources.memory_per_gpu is given, and no GPU", hint="use memory, or ask for GPUs"
            )
        each = resources.memory_per_gpu
        return Sized(each.mib * gpus, f"{count(gpus, 'GPU')} x {each}", asked=True)
    if resources.memory_per_cpu is not None:
        per_cpu = resources.memory_per_cpu
        if cpus is None:
            return Sized(None, f"{per_cpu} for each CPU that the site gives with the GPUs", asked=True)
        return Sized(per_cpu.mib * cpus, f"{count(cpus, 'CPU')} x {per_cpu}", asked=True)
    return None


def memory_per_node(cluster: Cluster, resources: Resources, place: Setting, cpus: int | None) -> Sized:
    """Memory on each node, in MiB; 0 is all of it."""
    fields = {"memory": "mem", "memory_per_cpu": "mem-per-cpu", "memory_per_gpu": "mem-per-gpu"}
    _check_taken(cluster, resources, fields)
    return memory_asked(resources, place.layout, cpus) or _memory_share(cluster, place, cpus)


def default_memory(
    cluster: Cluster, partition: Partition | None, layout: Layout, cpus: int | None
) -> int | None:
    """MiB that Slurm gives on each node to a job that asks for none (slurm.conf(5), DefMemPerGPU, DefMemPerCPU); None: not
    known."""
    if partition is None or cluster.slurm.memory_is_consumable is False:
        return None
    if layout.gpus_per_node and partition.default_memory_per_gpu:
        return partition.default_memory_per_gpu.mib * layout.gpus_per_node
    if partition.default_memory_per_cpu and cpus and cluster.dialect.cpus not in ("none", "srun"):
        return partition.default_memory_per_cpu.mib * cpus
    return None


def _memory_share(cluster: Cluster, place: Setting, cpus: int | None) -> Sized:
    gpus = place.layout.gpus_per_node
    if not cluster.dialect.memory_share or cluster.dialect.memory == "none":
        return Sized(None, "the site gives memory by itself")
    if cluster.slurm.memory_is_consumable is False:
        return Sized(None, "memory is not given out here: jobs share that of the node")
    smallest = _smallest(place.groups, "memory") if gpus else None
    if smallest is None:
        return Sized(
            None,
            "the nodes' memory is not known" if gpus else "no GPU, so no share to derive: the site's default",
        )
    group, share = smallest
    mib = int(share * gpus)
    limit = _most_memory(place, cpus)
    if limit is not None and mib > limit:
        return Sized(limit, f"limits there allow {Memory(limit).readable} a node")
    if mib >= 1024:  # whole GiB read better, and rounding down always fits
        mib = mib // 1024 * 1024
    own = None
    if group.memory_per_gpu or (group.unit and group.unit.memory) or group.max_memory_per_gpu:
        own = Memory(int(share)).readable
    return Sized(mib, _describe(place, group, group.memory.readable if group.memory else "", own))


def _most_memory(place: Setting, cpus: int | None) -> int | None:
    """Return the most memory on a node that limits allow, in MiB."""
    limits = place.limits
    most = [limits.max_memory.mib] if limits.max_memory else []
    totals = (limits.max_memory_in_all, limits.per_user.memory, limits.in_all.memory)
    most += [total.mib // place.layout.nodes for total in totals if total is not None]
    if limits.max_memory_per_cpu is not None and cpus:
        most.append(limits.max_memory_per_cpu.mib * cpus)
    return min(most, default=None)
