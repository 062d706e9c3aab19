"""Where a job goes: the partition that has what it asks for, and what would fit where nothing does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.models.resources import Resources
from slurmgpu.planning.request import Layout, Misfit, Request, spread

__all__ = ["Placement", "gpu_type_matches", "place"]

_MOST_SEARCHED = 4096  # GPUs: a larger request that fits is not looked for when a refusal says what would.


class Placement(NamedTuple):
    """A partition, the layout on it, and the kinds of node there that can hold it."""

    partition: str | None
    groups: tuple[NodeGroup, ...]
    layout: Layout
    why: str


def gpu_type_matches(cluster: Cluster, wanted: str, group_type: str | None) -> bool:
    """Whether a job's name for a type means the type of a group of nodes: by its name, or by its gres type."""
    if group_type is None:
        return False
    known = cluster.gpu_types.get(group_type)
    return wanted == group_type or (known is not None and known.gres == wanted)


def _is_slice(cluster: Cluster, group: NodeGroup) -> bool:
    """Whether its GPUs are slices: types that end in a MIG profile's name (1g.10gb), as NVIDIA names them."""
    known = cluster.gpu_types.get(group.gpu_type or "")
    return bool(re.search(r"(?:^|_)\d+g\.\d+gb\Z", (known and known.gres) or group.gpu_type or ""))


def _check_group(cluster: Cluster, group: NodeGroup, request: Request) -> Layout:
    if request.wants_gpus and group.gpus == 0:
        raise Misfit("has no GPUs")
    if request.gpu_type and not gpu_type_matches(cluster, request.gpu_type, group.gpu_type):
        raise Misfit("")  # _try_partition says it once for the whole partition
    if request.gpu_memory:
        known = cluster.gpu_types.get(group.gpu_type or "")
        if known is None or known.memory is None or known.memory < request.gpu_memory:
            has = known.memory.readable if known and known.memory else "unknown memory"
            raise Misfit(f"has GPUs of {has}, {request.gpu_memory.readable} are asked for")
    layout = spread(request, group.gpu_count if request.wants_gpus else None)
    cpus, memory = request.cpus_on_a_node(layout), request.memory_on_a_node(layout)
    if group.cpus is not None and cpus > group.cpus:
        raise Misfit(f"has {group.cpus} CPUs a node, {cpus} are asked for")
    if group.memory is not None and memory > group.memory:
        raise Misfit(f"has {group.memory.readable} of memory a node, {memory.readable} are asked for")
    return layout


def _enough_nodes(
    fitting: list[tuple[NodeGroup, Layout]], wants_gpus: bool
) -> tuple[list[tuple[NodeGroup, Layout]], list[str]]:
    """Those of which there are enough: kinds that differ in CPUs or memory count together, types of GPU do not."""
    alike: dict[tuple[int, int, str | None], list[tuple[NodeGroup, Layout]]] = {}
    for group, layout in fitting:
        kind = group.gpu_type if wants_gpus else None
        alike.setdefault((layout.nodes, layout.gpus_per_node, kind), []).append((group, layout))
    enough: list[tuple[NodeGroup, Layout]] = []
    misfits: list[str] = []
    for (nodes, _, _), those in alike.items():
        counts = [group.count for group, _ in those]
        known = [number for number in counts if number is not None]
        if len(known) == len(counts) and sum(known) < nodes:
            misfits.append(f"has {sum(known)} such nodes, {nodes} are needed")
        else:
            enough += those
    return enough, misfits


def _check_limits(partition: Partition, layout: Layout, request: Request) -> None:
    limits = partition.limits
    if request.time is not None and limits.max_time is not None and request.time.exceeds(limits.max_time):
        raise Misfit(f"allows at most {limits.max_time}, {request.time} is asked for")
    if limits.max_nodes is not None and layout.nodes > limits.max_nodes:
        raise Misfit(f"allows at most {limits.max_nodes} nodes a job, {layout.nodes} are needed")
    gpus = layout.nodes * layout.gpus_per_node
    if limits.max_gpus is not None and gpus > limits.max_gpus:
        raise Misfit(f"allows at most {limits.max_gpus} GPUs a job, {gpus} are asked for")
    cpus = layout.nodes * request.cpus_on_a_node(layout)
    if limits.max_cpus is not None and cpus > limits.max_cpus:
        raise Misfit(f"allows at most {limits.max_cpus} CPUs a job, {cpus} are asked for")
    memory = request.memory_on_a_node(layout)
    if limits.max_memory is not None and memory > limits.max_memory:
        raise Misfit(f"allows at most {limits.max_memory.readable} a node, {memory.readable} are asked for")
    if partition.requires_gpu and not request.wants_gpus:
        raise Misfit("refuses jobs without a GPU")


def _try_partition(cluster: Cluster, name: str, request: Request) -> Placement:
    """The placement on one partition; Misfit says why there is none."""
    partition = cluster.partitions[name]
    if not partition.nodes:
        layout = spread(request, None)
        _check_limits(partition, layout, request)
        return Placement(name, (), layout, "")
    fitting: list[tuple[NodeGroup, Layout]] = []
    misfits: dict[str, None] = {}
    for group in partition.nodes:
        try:
            layout = _check_group(cluster, group, request)
            _check_limits(partition, layout, request)
        except Misfit as misfit:
            misfits[str(misfit)] = None
        else:
            fitting.append((group, layout))
    fitting, too_few = _enough_nodes(fitting, request.wants_gpus)
    misfits.update(dict.fromkeys(too_few))
    if not fitting:
        misfits.pop("", None)
        types = sorted({group.gpu_type or "unnamed" for group in partition.nodes if group.gpus != 0})
        raise Misfit(
            "; ".join(misfits) or f"has no {request.gpu_type} (its types: {', '.join(types) or 'none'})"
        )
    # Processes on slices cannot work together, and a user who names no type means a whole GPU.
    whole = [pair for pair in fitting if not _is_slice(cluster, pair[0])]
    fitting = whole if whole and request.wants_gpus and not request.gpu_type else fitting
    best = min((layout for _, layout in fitting), key=lambda layout: layout.nodes)
    groups = tuple(
        group
        for group, layout in fitting
        if (layout.nodes, layout.gpus_per_node) == (best.nodes, best.gpus_per_node)
    )
    return Placement(name, groups, best, "")


def _candidates(cluster: Cluster, request: Request) -> tuple[list[Placement], dict[str, str]]:
    fitting: list[Placement] = []
    misfits: dict[str, str] = {}
    for name in [request.partition] if request.partition else list(cluster.partitions):
        if cluster.partitions[name].preemptible and request.partition is None:
            misfits[name] = "is preemptible, and chosen only by name"
            continue
        try:
            fitting.append(_try_partition(cluster, name, request))
        except Misfit as misfit:
            misfits[name] = str(misfit)
    return fitting, misfits


def _choose(cluster: Cluster, fitting: list[Placement]) -> Placement:
    """The best of several partitions.

    Whole GPUs before slices, nodes whose GPUs are known before others; then the fewest nodes; then Slurm's default;
    then the profile's order.
    """

    def rank(placement: Placement) -> tuple[bool, bool, int, bool]:
        groups = placement.groups
        return (
            bool(groups) and all(_is_slice(cluster, group) for group in groups),
            all(group.gpus is None for group in groups),
            placement.layout.nodes,
            placement.partition != cluster.default_partition,
        )

    return min(fitting, key=rank)


def place(cluster: Cluster, resources: Resources) -> Placement:
    """Choose the partition and the layout; PlanError names what does not fit, and what would."""
    request = Request.of(resources)
    if request.partition is not None and cluster.dialect.partition == "never":
        raise PlanError(
            f"resources.partition: {request.partition!r}: jobs on {cluster.name!r} name no partition",
            hint="leave the partition out",
        )
    if not cluster.known:
        try:
            return Placement(request.partition, (), spread(request, None), "the partition as asked")
        except Misfit as misfit:
            raise PlanError(f"{request}: cluster {cluster.name!r} {misfit}") from None
    if request.partition is not None and request.partition not in cluster.partitions:
        raise PlanError(
            f"resources.partition: {request.partition!r} is no partition of {cluster.name!r}; "
            f"it has {', '.join(cluster.partitions)}",
            hint="name one of these, or leave the partition out, and the planner chooses one that fits",
        )
    fitting, misfits = _candidates(cluster, request)
    if fitting:
        chosen = _choose(cluster, fitting)
        return chosen._replace(why=_why(cluster, request, chosen, len(fitting)))
    where = "; ".join(f"partition {name!r} {why}" for name, why in misfits.items())
    ways = list(_ways_out(cluster, request))
    raise PlanError(
        f"{request} do{'es' if request.gpus == 1 else ''} not fit on {cluster.name!r}: {where}",
        hint="what would fit: " + "; or ".join(ways)
        if ways
        else "no smaller request of this kind fits either",
    )


def _why(cluster: Cluster, request: Request, chosen: Placement, fitting: int) -> str:
    if request.partition:
        return "as asked"
    if len(cluster.partitions) == 1:
        return "the only partition"
    considered = sum(not partition.preemptible for partition in cluster.partitions.values())
    kind = "partitions" if considered == len(cluster.partitions) else "partitions that are not preemptible"
    if fitting == 1:
        return f"the only one of {considered} {kind} that {request} fit on"
    default = ", the site's default" if chosen.partition == cluster.default_partition else ""
    return f"{fitting} of {considered} {kind} fit; this one with the fewest nodes{default}"


def _ways_out(cluster: Cluster, request: Request) -> Iterator[str]:
    """Requests near this one that do fit, in words; at most four."""
    found = 0
    for text, nearby in _nearby(cluster, request):
        fitting, _ = _candidates(cluster, nearby)
        if not fitting:
            continue
        placement = _choose(cluster, fitting)
        layout = placement.layout
        shape = (
            f"nodes: {layout.nodes}, gpus_per_node: {layout.gpus_per_node}"
            if request.wants_gpus
            else f"nodes: {layout.nodes}"
        )
        partition = (
            f" (partition {placement.partition!r})"
            if cluster.dialect.partition != "never" and placement.partition != request.partition
            else ""
        )
        named = "{partition!r}" in text
        words = text.replace("{shape}", shape).replace("{partition!r}", repr(placement.partition))
        yield words + ("" if named else partition)
        found += 1
        if found == 4:
            return


def _nearby(cluster: Cluster, request: Request) -> Iterator[tuple[str, Request]]:
    total = request.gpus or (request.gpus_per_node or 0) * (request.nodes or 1)
    if request.partition:
        yield "partition {partition!r}", request._replace(partition=None)
    for name, partition in cluster.partitions.items():
        if partition.preemptible and name != request.partition:
            yield (
                "partition {partition!r}, whose jobs can be stopped for others",
                request._replace(partition=name),
            )
    if request.wants_gpus:
        yield "{shape}", request._replace(gpus=total, gpus_per_node=None, nodes=None)
        for fewer in range(min(total - 1, _MOST_SEARCHED), 0, -1):
            smaller = request._replace(gpus=fewer, gpus_per_node=None, nodes=None)
            if _candidates(cluster, smaller)[0]:
                shaped = request.nodes is not None or request.gpus_per_node is not None
                yield "{shape}" if shaped else f"gpus: {fewer}", smaller
                break
    limits = [partition.limits.max_time for partition in cluster.partitions.values()]
    for limit in sorted((one for one in limits if one and one.seconds), key=lambda one: -(one.seconds or 0)):
        if request.time is not None and request.time.exceeds(limit):
            shorter = request._replace(time=limit)
            if _candidates(cluster, shorter)[0]:
                yield f"time: {limit}", shorter
                break
    if request.gpu_type:
        types = {group.gpu_type for p in cluster.partitions.values() for group in p.nodes if group.gpu_type}
        for other in sorted(types - {request.gpu_type}):
            yield f"gpu_type: {other}", request._replace(gpu_type=other)
        yield "any type of GPU", request._replace(gpu_type=None)
    if request.gpu_memory:
        yield "any gpu_memory", request._replace(gpu_memory=None)
    if request.memory or request.memory_per_gpu or request.memory_per_cpu:
        less = request._replace(memory=None, memory_per_gpu=None, memory_per_cpu=None)
        yield "less memory (leave it out for the GPUs' share)", less
    if request.cpus_per_task or request.cpus_per_gpu:
        fewer_cpus = request._replace(cpus_per_task=None, cpus_per_gpu=None)
        yield "fewer CPUs (leave them out for the GPUs' share)", fewer_cpus
