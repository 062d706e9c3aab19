"""A job on one partition: the nodes it gets there, its CPUs and memory, and what keeps it from starting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, Limits, NodeGroup, Partition
from slurmgpu.models.resources import Resources
from slurmgpu.planning.accounts import Chosen, account_of, qos_candidates, wants_gpu_type
from slurmgpu.planning.nodes import (
    Pin,
    cpus_with_each_gpu,
    entry_of,
    gpu_type_matches,
    is_slice,
    joined,
    names_of,
    selectable,
    suits,
)
from slurmgpu.planning.request import Ask, Layout, Misfit, Problem, Request, spread
from slurmgpu.planning.sizing import (
    Setting,
    Sized,
    cpus_asked,
    cpus_counted,
    cpus_per_node,
    default_memory,
    memory_asked,
    memory_per_node,
)
from slurmgpu.planning.verdict import limits_for, problems

__all__ = ["Draft", "draft"]

Tasks = Callable[[Layout], int]
"""Tasks on each node of a layout, which the launcher decides."""


class Draft(NamedTuple):
    """A job on one partition."""

    partition: str | None
    layout: Layout
    groups: tuple[NodeGroup, ...]
    """The kinds of node that can hold it, each with one type of GPU."""
    tasks_per_node: int
    cpus: Sized
    memory: Sized
    account: Chosen
    qos: Chosen
    constraint: str | None
    ask: Ask
    gpu_type: str | None
    """The type that the request names; None: it names none."""
    gpu_type_why: str
    problems: tuple[Problem, ...] = ()


def draft(cluster: Cluster, resources: Resources, name: str | None, tasks: Tasks) -> Draft:
    """Return the best draft on a partition (None, or one that is not described: nothing is known of it).

    Layouts with fewer nodes, common types of GPU and QOS in the site's order go first; the first without problems
    is taken (best with GPUs that the account is for), else the first. Misfit says why there is none at all.
    """
    partition = cluster.partitions.get(name or "")
    first: Draft | None = None
    for layout, groups in _layouts(cluster, resources, partition, tasks):
        fitting: Draft | None = None
        for pin in _pins(cluster, resources, partition, layout, groups, tasks(layout)):
            for qos in qos_candidates(cluster, resources, partition):
                made = _sized(cluster, resources, name, layout, pin, tasks(layout), qos)
                if not made.problems and made.account.instead is None:
                    return made
                if not made.problems:
                    fitting = fitting or made
                first = first or made
        if fitting is not None:
            return fitting
    assert first is not None
    return first


def _layouts(
    cluster: Cluster, resources: Resources, partition: Partition | None, tasks: Tasks
) -> Iterator[tuple[Layout, tuple[NodeGroup, ...]]]:
    """Yield the ways to lay the job out there, and the kinds of node for each; the fewest nodes first."""
    request = Request.of(resources)
    if partition is None or not partition.nodes:
        yield spread(request, None), ()
        return
    fitting: dict[tuple[int, int], tuple[Layout, list[NodeGroup]]] = {}
    others: dict[tuple[int, int], tuple[Layout, list[NodeGroup]]] = {}
    misfits: dict[str, None] = {}
    for kind in _meant(cluster, resources, partition):
        try:
            layout = spread(
                request, kind.gpu_count if request.wants_gpus else None, whole=kind.whole_across_nodes
            )
        except Misfit as misfit:
            misfits[str(misfit)] = None
            continue
        asked = _asked(cluster, resources, partition, layout, tasks(layout))
        group = others if suits(cluster, kind, asked) else fitting
        group.setdefault((layout.nodes, layout.gpus_per_node), (layout, []))[1].append(kind)
    if not fitting and not others:
        raise Misfit("; ".join(misfits))
    for _, (layout, kinds) in sorted((fitting or others).items()):
        whole = [kind for kind in kinds if not is_slice(cluster, kind)]
        chosen = whole if whole and request.wants_gpus and not request.gpu_type else kinds
        yield layout, tuple(chosen) if fitting else ()


def _meant(cluster: Cluster, resources: Resources, partition: Partition) -> tuple[NodeGroup, ...]:
    """Return the kinds of node that a request means: who names no type, and nothing else that selects slices, means whole GPUs,
    also where more slices are on a node. Processes on slices cannot work together."""
    request = Request.of(resources)
    if not request.wants_gpus or request.gpu_type or resources.constraint:
        return partition.kinds
    others = tuple(kind for kind in partition.kinds if not is_slice(cluster, kind))
    return others if any(kind.gpu_count != 0 for kind in others) else partition.kinds


_MIXED = "without a type Slurm may mix"


def _pins(
    cluster: Cluster,
    resources: Resources,
    partition: Partition | None,
    layout: Layout,
    groups: tuple[NodeGroup, ...],
    tasks: int,
) -> list[Pin]:
    """Return the types to try on a layout, the best first; ``groups`` are the kinds of node that are meant.

    A type is named where one is asked for, where the site requires one, and where Slurm could hand out something
    else than is meant: a slice, GPUs of too little memory, or several types in one job.
    """
    wanted = resources.wanted_gpu_type
    if wanted or partition is None or not groups or not layout.gpus_per_node:
        return [Pin(wanted, groups)]
    pool = _pool(cluster, partition, _asked(cluster, resources, partition, layout, tasks))
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
    """Return the nodes that Slurm could hand out when no type is named.

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
    """Return why a type must be named; nothing: need not."""
    if wants_gpu_type(cluster):
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


def _asked(
    cluster: Cluster, resources: Resources, partition: Partition | None, layout: Layout, tasks: int
) -> Ask:
    """Return what is asked for in so many words; what is derived later fits by itself."""
    cpus = cpus_asked(resources, layout, tasks)
    memory = memory_asked(resources, layout, cpus.amount if cpus else tasks)
    return Ask(
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        gpu_type=resources.wanted_gpu_type,
        gpu_memory=resources.gpu_memory,
        gres=resources.gres,
        constraint=joined(
            resources.constraint, cluster.dialect.constraint, partition.constraint if partition else None
        ),
        cpus_per_node=max(tasks, (cpus.amount or 0) if cpus else 0),
        memory_per_node=memory.amount if memory else None,
        detail=cpus.why if cpus and cpus.counted else "",
        time=resources.time,
    )


def _sized(
    cluster: Cluster,
    resources: Resources,
    name: str | None,
    layout: Layout,
    pin: Pin,
    tasks: int,
    qos: Chosen,
) -> Draft:
    pinned, groups, _ = pin
    partition = cluster.partitions.get(name or "")
    asked = _asked(cluster, resources, partition, layout, tasks)
    account = Chosen(resources.account, "as asked", asked=True)
    place = Setting(layout, groups, _tightest(cluster, name, qos.value, account.value))
    cpus = cpus_per_node(cluster, resources, place, tasks)
    counted = cpus_counted(cluster, place, cpus, tasks)
    memory = memory_per_node(cluster, resources, place, counted)
    made = Draft(
        name, layout, groups, tasks, cpus, memory, account, qos, asked.constraint, asked, pinned, pin.why
    )
    entry, _ = entry_of(cluster, groups, pinned)
    types = [entry or pinned] if pinned else [group.gpu_type for group in groups]
    if groups or partition is None or not partition.nodes:
        # What no node there can hold needs no account there.
        account = account_of(cluster, resources, partition, frozenset(name for name in types if name))
    rule = cluster.qos.get(qos.value or "")
    whole = cluster.dialect.whole_nodes if partition is None else partition.whole_nodes
    said = cluster.dialect.cpus not in ("none", "srun")
    ask = asked._replace(
        partition=name,
        gpu_type=pinned,
        cpus_per_node=max(tasks, cpus.amount or 0),
        cpus_per_task=max(1, (cpus.amount or 0) // tasks),
        # As few as one will do: the plan then says --cpus-per-gpu.
        cpus_with_each_gpu=1 if cpus.amount and said and cpus_with_each_gpu(cluster, partition) else None,
        memory_per_node=memory.amount,
        default_memory=None if memory.asked else default_memory(cluster, partition, layout, counted),
        qos=qos.value,
        account=account.value,
        whole=resources.exclusive
        or bool(rule and rule.exclusive)
        or bool(cluster.dialect.whole_nodes if whole is None else whole),
        detail=cpus.why if cpus.counted else "",
    )
    found = problems(cluster, ask) if cluster.judges else []
    found += _of_types(cluster, resources, ask, partition, not any(one.about == "gpu_type" for one in found))
    return made._replace(account=account, ask=ask, problems=tuple(found))


def _of_types(
    cluster: Cluster, resources: Resources, ask: Ask, partition: Partition | None, there: bool
) -> Iterator[Problem]:
    """Yield what speaks against the type of GPU, or against none; ``there``: nothing else says that it cannot be had."""
    pinned, everywhere = ask.gpu_type, partition.kinds if partition else ()
    if pinned and there and not resources.constraint and not selectable(cluster, everywhere, pinned):
        yield Problem(
            f"cluster {cluster.name!r}",
            f"takes no type of GPU in a request, and its profile names no constraint that selects {pinned!r} "
            f"(gpu_types: {{{pinned}: {{constraint: ...}}}}, or -C)",
            "gpu_type",
        )
    if not pinned and "gpu_type" in cluster.dialect.required and ask.gpus_per_node and not ask.constraint:
        yield Problem(
            f"cluster {cluster.name!r}",
            "refuses GPUs without a type, and its profile does not know the types: name one (--gpus a100:2, or "
            "gpu_type:); sinfo -o '%P %G' lists them",
            "gpu_type",
        )


def _tightest(cluster: Cluster, partition: str | None, qos: str | None, account: str | None) -> Limits:
    """Return the limits that derived amounts keep to: of each, the smallest."""
    tight = Limits.model_construct()
    for rule in limits_for(cluster, partition, qos, account):
        tight = _both(tight, rule.limits)
    return tight


def _both(one: Limits, other: Limits) -> Limits:
    update: dict[str, object] = {}
    for name in ("max_cpus", "max_cpus_per_node", "max_memory", "max_memory_per_cpu", "max_memory_in_all"):
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        update[name] = min(values, default=None)
    for owner in ("per_user", "in_all"):
        totals = {}
        for name in ("cpus", "memory"):
            pair = (getattr(getattr(one, owner), name), getattr(getattr(other, owner), name))
            totals[name] = min((value for value in pair if value is not None), default=None)
        update[owner] = getattr(one, owner).model_copy(update=totals)
    return one.model_copy(update=update)
