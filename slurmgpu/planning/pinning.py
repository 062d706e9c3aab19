"""Which type of GPU a request must name, so that Slurm hands out what the plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.models.plan import Reason
from slurmgpu.models.resources import Resources
from slurmgpu.planning.nodes import Pin, gpu_type_matches, is_slice, names_of, selectable, suits
from slurmgpu.planning.request import Ask, Layout

if TYPE_CHECKING:
    from slurmgpu.planning.drafting import Draft

__all__ = ["loose_types", "pins", "type_reasons"]


_MIXED = "without a type Slurm may mix"


def pins(
    cluster: Cluster,
    resources: Resources,
    partition: Partition | None,
    layout: Layout,
    groups: tuple[NodeGroup, ...],
    asked: Ask,
) -> list[Pin]:
    """The types to try on a layout, the best first; ``groups`` are the kinds of node that are meant.

    A type is named where one is asked for, where the site requires one, and where Slurm could hand out something
    else than is meant: a slice, GPUs of too little memory, or several types in one job.
    """
    wanted = resources.wanted_gpu_type
    if wanted or partition is None or not groups or not layout.gpus_per_node:
        return [Pin(wanted, groups)]
    pool = _pool(cluster, partition, asked)
    why = _why(cluster, layout, groups, pool)
    if not why:
        return [Pin(None, groups)]
    nodes: dict[str, int] = {}
    for kind in groups:
        if kind.gpu_type is not None and selectable(cluster, partition.kinds, kind.gpu_type):
            nodes[kind.gpu_type] = nodes.get(kind.gpu_type, 0) + (kind.count or 0)
    if not nodes:  # nothing names one: then whatever is there may come
        return [Pin(None, tuple(kind for group in pool for kind in group.kinds) or groups)]
    # Of several types the one with the most nodes: it starts soonest. Of as many, the profile's first.
    best = sorted(nodes, key=lambda name: -nodes[name])
    commonest = f"; the commonest of {', '.join(best)}" if len(best) > 1 else ""
    named = [
        Pin(
            name,
            tuple(kind for kind in groups if gpu_type_matches(cluster, name, kind.gpu_type)),
            why + (commonest if name == best[0] else f"; a type that fits, of {', '.join(best)}"),
        )
        for name in best
    ]
    # So many nodes as no type alone has can be had mixed: better than none, with a warning.
    too_few = all(0 < number < layout.nodes for number in nodes.values())
    return [*named, Pin(None, groups)] if too_few and why.startswith(_MIXED) else named


def _pool(cluster: Cluster, partition: Partition, asked: Ask) -> list[NodeGroup]:
    """The nodes that Slurm could hand out when no type is named.

    GPUs of any type count together there, and what a site allows for a GPU need not be Slurm's own rule.
    """
    any_type = asked._replace(
        gpu_type=None, gpu_memory=asked.gpu_memory if cluster.dialect.gpu_memory_gres else None
    )

    def as_slurm_sees_it(group: NodeGroup) -> NodeGroup:
        return group.model_copy(
            update={"gpus": group.gpu_count, "max_cpus_per_gpu": None, "max_memory_per_gpu": None}
        )

    return [group for group in partition.nodes if suits(cluster, as_slurm_sees_it(group), any_type) is None]


def _why(cluster: Cluster, layout: Layout, groups: tuple[NodeGroup, ...], pool: list[NodeGroup]) -> str:
    """Why a type must be named; nothing: need not."""
    if "gpu_type" in cluster.dialect.required:
        return f"{cluster.name} wants a type in every request"
    kinds = tuple(kind for group in pool for kind in group.kinds)
    meant = set(names_of(groups))
    others = [
        kind for kind in kinds if names_of((kind,)) and kind.gpu_type not in {one.gpu_type for one in groups}
    ]
    slices = names_of(tuple(kind for kind in others if is_slice(cluster, kind)))
    if slices and not all(is_slice(cluster, kind) for kind in groups):
        return f"without a type Slurm may give slices ({', '.join(slices)})"
    if others:
        return f"without a type Slurm may give {', '.join(names_of(tuple(others)))}"
    types = sorted(meant | set(names_of(kinds)))
    mixed_node = layout.gpus_per_node > 1 and any(len(group.kinds) > 1 for group in pool)
    if len(types) > 1 and (mixed_node or layout.nodes > 1):
        return f"{_MIXED} {', '.join(types)}"
    return ""


def type_reasons(draft: Draft) -> tuple[Reason, ...]:
    """Which type of GPU a job gets that names none, and why."""
    if not draft.layout.gpus_per_node or (draft.gpu_type and not draft.gpu_type_why):
        return ()
    if draft.gpu_type:
        return (Reason.of("GPU type", draft.gpu_type, draft.gpu_type_why),)
    types = names_of(draft.groups)
    if len(types) < 2:
        return ()
    why = "none is asked for: Slurm gives what is free first; gpu_type names one"
    return (Reason.of("GPU type", f"any of {', '.join(types)}", why),)


def loose_types(cluster: Cluster, draft: Draft) -> list[str]:
    """What Slurm may hand out that is not meant, where no type can be named."""
    layout, types = draft.layout, names_of(draft.groups)
    if draft.ask.gpu_type is not None or not layout.gpus_per_node or len(types) < 2:
        return []
    no_way = f"the profile of {cluster.name!r} has no way to name a type (gpu_types: {{TYPE: {{constraint: ...}}}})"
    slices = names_of(tuple(kind for kind in draft.groups if is_slice(cluster, kind)))
    if slices and slices != types:
        return [f"Slurm may give a slice of a GPU ({', '.join(slices)}), and {no_way}"]
    if layout.nodes > 1:
        selected = [
            kind
            for kind in draft.groups
            if kind.gpu_type and selectable(cluster, draft.groups, kind.gpu_type)
        ]
        why = "no type alone has as many" if selected else no_way
        return [
            f"Slurm may mix {', '.join(types)} over the {layout.nodes} nodes, and {why}: all would wait for the slowest"
        ]
    return []
