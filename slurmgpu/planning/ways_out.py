"""Requests that would fit where a job does not, the nearest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, Limits
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, GpuRequest
from slurmgpu.planning.choosing import candidates, preferred
from slurmgpu.planning.drafting import Tasks
from slurmgpu.planning.nodes import retyped

__all__ = ["ways_out"]


class Way(NamedTuple):
    """A request near the one that does not fit, and what to write for it."""

    text: str
    resources: Resources
    several: bool = False
    """True if it changes several things: taken only where no single change helps."""


Ways = Iterator[Way]

_MOST = 4
_LEFT_OUT = (
    "gpu_type", "gpu_memory", "constraint", "qos", "memory", "memory_per_gpu", "memory_per_cpu", "cpus_per_task",
    "cpus_per_gpu",
)  # fmt: skip
_MOST_SEARCHED = 128
"""Numbers of GPUs that are tried one by one when a refusal looks for the most that fit."""


def ways_out(cluster: Cluster, resources: Resources, tasks: Tasks) -> list[str]:
    """Requests near this one that do fit, in words; at most four."""
    found: list[str] = []
    nearest = chain(_nearby(cluster, resources, tasks), _several_changes(cluster, resources, tasks))
    for text, nearby, several in nearest:
        if found and several:
            break
        if nearby.partition and cluster.dialect.partition == "never":
            nearby = nearby.model_copy(update={"partition": None})
        fitting = candidates(cluster, nearby, tasks).fitting
        if not fitting:
            continue
        best = preferred(cluster, fitting)
        shape = f"nodes: {best.layout.nodes}"
        if best.layout.gpus_per_node:
            shape += f", gpus_per_node: {best.layout.gpus_per_node}"
        words = text.replace("{shape}", shape).replace("{partition!r}", repr(best.partition))
        elsewhere = cluster.dialect.partition != "never" and best.partition != resources.partition
        named = not elsewhere or f"partition {best.partition!r}" in words
        found.append(words + ("" if named else f" (partition {best.partition!r})"))
        if len(found) == _MOST:
            break
    return list(dict.fromkeys(found))


def reshaped(resources: Resources, gpus: int) -> Resources:
    """Return the same with so many GPUs in all, however they lie."""
    request = GpuRequest(gpus, resources.wanted_gpu_type)
    return resources.model_copy(update={"gpus": request, "gpus_per_node": None, "nodes": None})


def _nearby(cluster: Cluster, resources: Resources, tasks: Tasks) -> Ways:
    yield from _elsewhere(cluster, resources)
    if resources.gpus or resources.gpus_per_node:
        yield from _other_gpus(cluster, resources, tasks)
    else:
        if resources.partition:
            yield Way("{shape}", resources.model_copy(update={"nodes": None}))
        if any(partition.requires_gpu for partition in cluster.partitions.values()):
            yield Way("gpus: 1", reshaped(resources, 1))
    yield from _less_time(cluster, resources, tasks)
    if resources.qos:
        for name in [*cluster.qos, None]:
            if name != resources.qos:
                text = f"qos: {name}" if name else "no qos"
                yield Way(text, resources.model_copy(update={"qos": name}))
    else:
        for name in cluster.qos:
            yield Way(f"qos: {name}", resources.model_copy(update={"qos": name}))
    if resources.account and cluster.associations:
        for name in dict.fromkeys(row.account for row in cluster.associations):
            yield Way(f"account: {name}", resources.model_copy(update={"account": name}))
    yield from _other_nodes(cluster, resources, tasks)


def _elsewhere(cluster: Cluster, resources: Resources) -> Ways:
    if resources.partition:
        yield Way("partition {partition!r}", resources.model_copy(update={"partition": None}))
    for name, partition in cluster.partitions.items():
        if name == resources.partition or not (partition.preemptible or partition.by_name):
            continue
        what = ", whose jobs can be stopped for others" if partition.preemptible else ""
        yield Way(f"partition {name!r}{what}", resources.model_copy(update={"partition": name}))


def _total(resources: Resources) -> int:
    per_node = resources.gpus_per_node.count if resources.gpus_per_node else 0
    return resources.gpus.count if resources.gpus else per_node * (resources.nodes or 1)


def _other_gpus(cluster: Cluster, resources: Resources, tasks: Tasks) -> Ways:
    per_node, total = resources.gpus_per_node, _total(resources)
    if resources.gpus and resources.nodes and total % resources.nodes:
        down = total - total % resources.nodes
        for even in (down, down + resources.nodes):
            request = GpuRequest(even, resources.wanted_gpu_type)
            if even:
                yield Way(
                    f"gpus: {even}, nodes: {resources.nodes}", resources.model_copy(update={"gpus": request})
                )
    same = reshaped(resources, total)
    shaped = resources.nodes is not None or per_node is not None
    even = total < _whole_node(cluster) or total % _whole_node(cluster) == 0
    if shaped and even and candidates(cluster, same, tasks).fitting:
        yield Way("{shape}", same)
    else:
        for fewer in _fewer(cluster, total):
            smaller = reshaped(resources, fewer)
            if candidates(cluster, smaller, tasks).fitting:
                yield Way("{shape}" if shaped else f"gpus: {fewer}", smaller)
                break
    # Some partitions want a least number.
    least = [one.limits.min_gpus for one in cluster.partitions.values() if one.limits.min_gpus]
    for more in sorted(number for number in least if number > total):
        yield Way(f"gpus: {more}", reshaped(resources, more))


def _fewer(cluster: Cluster, total: int, one_by_one: int = _MOST_SEARCHED) -> Iterator[int]:
    """Smaller numbers of GPUs, the largest first: one by one from the most that could be had, then by halves.

    Where nodes are given whole, one by one is node by node. The most that limits allow are among them.
    """
    step = _whole_node(cluster)
    sizes = set(_most_gpus(cluster, total))
    top = min(total - 1, max(sizes, default=0))
    for limits in _all_limits(cluster):
        sizes |= {limit or 0 for limit in (limits.max_gpus, limits.per_user.gpus, limits.in_all.gpus)}
    first = top - top % step
    last = max(0, first - one_by_one * step)
    sizes |= {*range(first, last, -step)}
    rest = last // 2
    while rest > 0:
        sizes.add(rest if rest < step else rest - rest % step)
        rest //= 2
    yield from sorted((size for size in sizes if 0 < size <= top), reverse=True)


def _whole_node(cluster: Cluster) -> int:
    """GPUs of a node where all nodes with GPUs are equal and given whole; else 1."""
    found = {
        kind.gpu_count if (cluster.dialect.whole_nodes if one.whole_nodes is None else one.whole_nodes) else 1
        for one in cluster.partitions.values()
        for kind in one.kinds
        if kind.gpu_count != 0
    }
    return (found.pop() or 1) if len(found) == 1 else 1


def _most_gpus(cluster: Cluster, total: int) -> Iterator[int]:
    """Yield the most GPUs of a job on each partition."""
    for partition in cluster.partitions.values():
        kinds = [kind for kind in partition.kinds if kind.gpu_count != 0]
        counts = [(kind.count, kind.gpu_count) for kind in kinds]
        known = [(nodes, gpus) for nodes, gpus in counts if nodes is not None and gpus is not None]
        most = sum(nodes * gpus for nodes, gpus in known) if len(known) == len(counts) else total
        most = min(most, partition.limits.max_gpus or most)
        nodes = partition.limits.max_nodes
        yield from (min(most, nodes * (gpus or most) if nodes else most) for _, gpus in counts)


def _all_limits(cluster: Cluster) -> list[Limits]:
    return [one.limits for one in cluster.partitions.values()] + [one.limits for one in cluster.qos.values()]


def _shorter(cluster: Cluster, resources: Resources) -> list[Duration]:
    """Return the limits of time that are shorter than what is asked for, the longest first."""
    limits = {
        limit
        for one in _all_limits(cluster)
        for limit in (one.max_time, *(row.max_time for row in one.max_time_by_nodes))
    }
    asked = resources.time
    shorter = [one for one in limits if asked and one is not None and one.seconds and asked.exceeds(one)]
    return sorted(shorter, key=lambda one: -(one.seconds or 0))


def _less_time(cluster: Cluster, resources: Resources, tasks: Tasks) -> Ways:
    for limit in _shorter(cluster, resources):
        nearby = resources.model_copy(update={"time": limit})
        if candidates(cluster, nearby, tasks).fitting:
            yield Way(f"time: {limit}", nearby)
            return


def _several_changes(cluster: Cluster, resources: Resources, tasks: Tasks) -> Ways:
    """Less time and fewer GPUs at once; then also any nodes, any CPUs and memory."""
    for left_out in ((), _LEFT_OUT, (*_LEFT_OUT, "partition")):
        dropped = [name for name in left_out if getattr(resources, name) is not None]
        if left_out and not dropped:
            continue
        base = resources.model_copy(update=dict.fromkeys(dropped))
        if "gpu_type" in left_out and resources.wanted_gpu_type:
            base, dropped = retyped(base, None), list(dict.fromkeys([*dropped, "gpu_type"]))
        without = f" without {', '.join(dropped)}" if dropped else ""
        for said, nearby in _smaller_and_shorter(cluster, base):
            if candidates(cluster, nearby, tasks).fitting:
                yield Way(f"{said}{{shape}}{without}", nearby, several=True)
                break


def _smaller_and_shorter(cluster: Cluster, resources: Resources) -> Iterator[tuple[str, Resources]]:
    """Fewer GPUs and less time at once, the most GPUs first."""
    times = [resources.time, *_shorter(cluster, resources)]
    wants = bool(resources.gpus or resources.gpus_per_node)
    shapes = (
        [reshaped(resources, fewer) for fewer in _fewer(cluster, _total(resources) + 1, 16)]
        if wants
        else [resources.model_copy(update={"nodes": None})]
    )
    for shape in shapes:
        for time in times:
            said = f"time: {time}, " if time != resources.time else ""
            yield said, shape.model_copy(update={"time": time})


def _less_gpu_memory(cluster: Cluster, resources: Resources, tasks: Tasks) -> Ways:
    """Return the most memory of a GPU that can be had; where none is known, none."""
    sizes = {one.memory for one in cluster.gpu_types.values() if one.memory is not None}
    for size in sorted(sizes, key=lambda one: -one.mib):
        nearby = resources.model_copy(update={"gpu_memory": size})
        if candidates(cluster, nearby, tasks).fitting:
            yield Way(f"gpu_memory: {size}", nearby)
            return
    yield Way("no gpu_memory", resources.model_copy(update={"gpu_memory": None}))


def _other_nodes(cluster: Cluster, resources: Resources, tasks: Tasks) -> Ways:
    if resources.cpus_per_task or resources.cpus_per_gpu:
        fewer = dict.fromkeys(("cpus_per_task", "cpus_per_gpu"))
        yield Way("fewer CPUs (leave them out for the GPUs' share)", resources.model_copy(update=fewer))
    if resources.memory or resources.memory_per_gpu or resources.memory_per_cpu:
        less = dict.fromkeys(("memory", "memory_per_gpu", "memory_per_cpu"))
        yield Way("less memory (leave it out for the GPUs' share)", resources.model_copy(update=less))
    wanted = resources.wanted_gpu_type
    if wanted:
        types = {kind.gpu_type for one in cluster.partitions.values() for kind in one.kinds if kind.gpu_type}
        for other in sorted(types - {wanted}):
            yield Way(f"gpu_type: {other}", retyped(resources, other))
        yield Way("any type of GPU", retyped(resources, None))
    if resources.gpu_memory:
        yield from _less_gpu_memory(cluster, resources, tasks)
    if resources.constraint:
        yield Way("no constraint", resources.model_copy(update={"constraint": None}))
