"""Kinds of node: which GPUs and features they have, and which can hold a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.lines.options import Release
from slurmgpu.lines.slurm import Features, read_constraint
from slurmgpu.models.cluster import Cluster, GpuType, Limits, NodeGroup, Partition
from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import GpuRequest, Memory
from slurmgpu.planning.request import SHARED, Ask, Clause

__all__ = [
    "Pin",
    "as_spelled",
    "counted_in_cores",
    "cpus_beside_gpus",
    "cpus_with_each_gpu",
    "entry_of",
    "features_of",
    "fitting_nodes",
    "gpu_type_matches",
    "gres_type",
    "has_features",
    "is_slice",
    "joined",
    "matches",
    "memory_of",
    "names_of",
    "other_types_beside",
    "release_of",
    "retyped",
    "selectable",
    "suits",
    "takes_one_thread",
]


class Pin(NamedTuple):
    """A type that the request names (None: none is named), and the nodes that can then be handed out."""

    gpu_type: str | None
    groups: tuple[NodeGroup, ...]
    why: str = ""


def retyped(resources: Resources, gpu_type: str | None) -> Resources:
    """Return the same with another type of GPU (None: of any)."""
    update: dict[str, object] = {"gpu_type": gpu_type}
    for name in ("gpus", "gpus_per_node"):
        request = getattr(resources, name)
        if request is not None:
            update[name] = GpuRequest(request.count)
    return resources.model_copy(update=update)


def as_spelled(cluster: Cluster, resources: Resources) -> Resources:
    """Return the same with its type of GPU in the cluster's letters: to Slurm, H100 and h100 are two (seen on 22.05)."""
    wanted = resources.wanted_gpu_type
    if wanted is None:
        return resources
    kinds = [kind.gpu_type for partition in cluster.partitions.values() for kind in partition.kinds]
    known = [*cluster.gpu_types, *(one.gres for one in cluster.gpu_types.values()), *kinds]
    same = [name for name in known if name is not None and name.lower() == wanted.lower()]
    return resources if wanted in same or not same else retyped(resources, same[0])


def gpu_type_matches(cluster: Cluster, wanted: str, group_type: str | None) -> bool:
    """Return True if a job's name for a type means the type of a group of nodes: by its name, or by its gres type."""
    if group_type is None:
        return False
    known = cluster.gpu_types.get(group_type)
    return wanted == group_type or (known is not None and known.gres == wanted)


def is_slice(cluster: Cluster, group: NodeGroup) -> bool:
    """Return True if its GPUs are slices: types that end in a MIG profile's name (1g.10gb), as NVIDIA names them."""
    known = cluster.gpu_types.get(group.gpu_type or "")
    return names_a_slice((known and known.gres) or group.gpu_type or "")


def memory_of(cluster: Cluster, group: NodeGroup) -> int | None:
    """Memory of a GPU there, in MiB; None: not known."""
    known = cluster.gpu_types.get(group.gpu_type or "")
    return known.memory.mib if known and known.memory else None


def names_of(groups: tuple[NodeGroup, ...]) -> list[str]:
    """Return the types of GPU in some nodes."""
    return sorted({group.gpu_type or "unnamed" for group in groups if group.gpu_count != 0})


def entry_of(
    cluster: Cluster, groups: tuple[NodeGroup, ...], wanted: str | None
) -> tuple[str | None, GpuType | None]:
    """Return the profile's entry for a type that a job names by the profile's name for it, or by its gres type."""
    if wanted is None or wanted in cluster.gpu_types:
        return wanted, cluster.gpu_types.get(wanted or "")
    here = {group.gpu_type for group in groups if gpu_type_matches(cluster, wanted, group.gpu_type)} & set(
        cluster.gpu_types
    )
    name = next(iter(here)) if len(here) == 1 else None
    return name, cluster.gpu_types.get(name or "")


def other_types_beside(cluster: Cluster, partition: str | None, gpu_type: str) -> set[str]:
    """Return the other types of GPU on a partition's nodes that have a type."""
    described = cluster.partitions.get(partition or "")
    return {
        kind.gpu_type or "unnamed"
        for group in (described.nodes if described else ())
        if any(gpu_type_matches(cluster, gpu_type, kind.gpu_type) for kind in group.kinds)
        for kind in group.kinds
        if not gpu_type_matches(cluster, gpu_type, kind.gpu_type)
    }


def gres_type(cluster: Cluster, wanted: str | None) -> str | None:
    """Return the type as a request names it; None where none is named in the request."""
    if (
        wanted is None
        or cluster.dialect.gpu_type_by == "constraint"
        or cluster.dialect.gpus in ("srun", "none")
    ):
        return None
    known = cluster.gpu_types.get(wanted)
    return wanted if known is None else known.gres or (None if known.constraint else wanted)


def selectable(cluster: Cluster, everywhere: tuple[NodeGroup, ...], wanted: str) -> bool:
    """Return True if the site's dialect can say that this type is meant, or need not: there is no other."""
    _, known = entry_of(cluster, everywhere, wanted)
    if gres_type(cluster, wanted) is not None or (known is not None and known.constraint):
        return True
    groups = [group for group in everywhere if group.gpu_count != 0]
    return bool(groups) and all(gpu_type_matches(cluster, wanted, group.gpu_type) for group in groups)


_Holds = Callable[[str], "bool | None"]


def _read(expression: str) -> Features | None:
    try:
        return read_constraint(re.sub(r"\s", "", expression))
    except ValueError:
        return None


def counted_in_cores(cluster: Cluster) -> Cluster:
    """Return a cluster as it is for a job that takes one thread of each core.

    Slurm then gives a core for each CPU that is asked for, and limits count all threads of it (seen on 22.05).
    """

    def per_core(number: int | None, threads: int) -> int | None:
        return number and max(1, number // threads)

    def with_limits(limits: Limits, threads: int) -> Limits:
        update: dict[str, object] = {
            name: per_core(getattr(limits, name), threads) for name in ("max_cpus", "max_cpus_per_node")
        }
        for name in ("per_user", "in_all"):
            totals = getattr(limits, name)
            update[name] = totals.model_copy(update={"cpus": per_core(totals.cpus, threads)})
        return limits.model_copy(update=update)

    def of(partition: Partition) -> Partition:
        nodes = []
        for group in partition.nodes:
            threads = group.threads_per_core or 1
            names = ("cpus", "cpus_per_gpu", "max_cpus_per_gpu")
            update: dict[str, object] = {name: per_core(getattr(group, name), threads) for name in names}
            unit = group.unit and group.unit.model_copy(update={"cpus": per_core(group.unit.cpus, threads)})
            nodes.append(group.model_copy(update={**update, "unit": unit, "threads_per_core": None}))
        threads = threads_of(partition)
        billing = partition.billing and partition.billing.model_copy(
            update={"cpu": partition.billing.cpu * threads}
        )
        limits = with_limits(partition.limits, threads)
        return partition.model_copy(update={"nodes": tuple(nodes), "limits": limits, "billing": billing})

    def threads_of(partition: Partition) -> int:
        return max((group.threads_per_core or 1 for group in partition.nodes), default=1)

    most = max((threads_of(one) for one in cluster.partitions.values()), default=1)
    if most == 1:
        return cluster
    return cluster.model_copy(
        update={
            "partitions": {name: of(one) for name, one in cluster.partitions.items()},
            "qos": {
                name: rule.model_copy(update={"limits": with_limits(rule.limits, most)})
                for name, rule in cluster.qos.items()
            },
            "associations": tuple(
                row.model_copy(update={"limits": with_limits(row.limits, most)})
                for row in cluster.associations
            ),
        }
    )


def takes_one_thread(hint: object, threads_per_core: object) -> bool:
    """Return True if a job's options take one thread of each core (sbatch(1), --hint and --threads-per-core)."""
    return str(hint) in {"nomultithread", "compute_bound"} or str(threads_per_core) == "1"


def features_of(cluster: Cluster, kind: NodeGroup) -> frozenset[str]:
    """Return the features of a kind of node: those stated, and the one that selects its type of GPU."""
    known = cluster.gpu_types.get(kind.gpu_type or "")
    selects = _read(known.constraint) if known and known.constraint and "|" not in known.constraint else None
    return frozenset((*kind.features, *(selects.names if selects else ())))


def _known_features(cluster: Cluster) -> frozenset[str]:
    groups = [group for partition in cluster.partitions.values() for group in partition.kinds]
    return frozenset().union(*(features_of(cluster, group) for group in groups)) if groups else frozenset()


def matches(cluster: Cluster, expression: str, kind: NodeGroup) -> bool | None:
    """Return True if nodes of a kind have what an expression demands; None if that cannot be told.

    A profile typed from documentation may leave features out: one that it names nowhere is not checked. Counts
    (``a*2``) and a mix of & and | without parentheses are not judged.
    """
    everywhere, here = _known_features(cluster), features_of(cluster, kind)

    def holds(feature: str) -> bool | None:
        return feature in here if cluster.complete or feature in everywhere else None

    read = _read(expression)
    return read and _holds(read, holds)


def has_features(expression: str, features: Collection[str]) -> bool | None:
    """Return True if a node with exactly these features has what an expression demands; None if that cannot be told."""
    read = _read(expression)
    return read and _holds(read, features.__contains__)


def _holds(features: Features, holds: _Holds) -> bool | None:
    if features.counted or len(features.operators) > 1 or "," in features.operators:
        return None
    if not features.parts:
        return holds(features.text)
    values = {_holds(part, holds) for part in features.parts}
    # Of "or" one that holds decides, of "and" one that does not.
    decides = features.operators == {"|"}
    return decides if decides in values else None if None in values else not decides


def joined(*expressions: str | None) -> str | None:
    """Return all of several expressions in one, each part once; None: there is none."""
    given = [expression for expression in dict.fromkeys(expressions) if expression]
    if len(given) == 1:
        return given[0]
    parts: dict[str, None] = {}
    for expression in given:
        read = _read(expression)
        # A mix of & and | stays together.
        split = [one.text for one in read.parts] if read and read.operators == {"&"} else [expression]
        for part in split:
            parts[f"({part})" if "|" in part and part[0] not in "([" else part] = None
    return "&".join(parts) or None


def suits(cluster: Cluster, kind: NodeGroup, ask: Ask) -> Clause | None:
    """Return why nodes of a kind cannot hold a node's part of a request; None: they can, as far as is known."""
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
    has, gpus = cpus_beside_gpus(kind, ask)
    wanted = (ask.cpus_with_each_gpu or 0) * gpus
    if has < wanted:
        whole = f"tasks of {count(ask.cpus_per_task, 'CPU')} take {has} of a whole node"
        said = whole if ask.whole else f"{has} are asked for{detail}"
        return Clause(
            "cpus",
            f"gives {count(ask.cpus_with_each_gpu or 0, 'CPU')} with each GPU, {wanted} for {gpus}, and Slurm "
            f"before 22.05 starts nothing that asks for fewer: {said}",
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
    if (
        ask.memory_per_node is None
        and kind.memory is not None
        and kind.memory.mib < (ask.default_memory or 0)
    ):
        given = Memory(ask.default_memory or 0).readable
        return Clause(
            "memory",
            f"has {kind.memory.readable} of memory a node, and Slurm gives {given} for {count(ask.cpus_per_node, 'CPU')} "
            "where no memory is asked for: name it",
        )
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
        if (
            gres.name in SHARED and ask.gpus_per_node
        ):  # sbatch: "Invalid generic resource (gres) specification" (22.05)
            return Clause("gres", f"gives a job whole GPUs or {gres.name}, not both")
        if gres.name == "shard" and ask.whole:  # the job would wait for ever (seen on 22.05 to 26.05)
            return Clause("gres", "gives no shards of nodes that are given whole")
        has = kind.shards if gres.name == "shard" else kind.gres.get(gres.name)
        if has is None and cluster.complete:  # read from Slurm itself: there is none
            return Clause("gres", f"has no {gres.name}")
        wanted = _whole(gres.count)
        if has is not None and wanted is not None and wanted > has:
            return Clause("gres", f"has {has} {gres.name} a node, {wanted} are asked for")
    return None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def fitting_nodes(cluster: Cluster, partition: Partition, ask: Ask) -> tuple[list[NodeGroup], list[Clause]]:
    """Return the nodes that can hold it, and why there are not enough of them."""
    ask = ask._replace(whole=ask.whole or bool(partition.whole_nodes))
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


def release_of(cluster: Cluster) -> Release | None:
    """Return the release of a cluster's Slurm as two numbers; None: not stated."""
    parts = (cluster.slurm.release or "").split(".")
    return (
        (int(parts[0]), int(parts[1]))
        if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit()
        else None
    )


def cpus_beside_gpus(kind: NodeGroup, ask: Ask) -> tuple[int, int]:
    """Return the CPUs and the GPUs of a node that Slurm before 22.05 holds against each other.

    Of a node that is given whole these are all its GPUs, and the CPUs of as many tasks as could be there, however many
    are asked for (seen on 20.11).
    """
    if ask.gpus_per_node and ask.whole and kind.cpus and kind.gpu_count:
        return kind.cpus // ask.cpus_per_task * ask.cpus_per_task, kind.gpu_count
    return ask.cpus_per_node, ask.gpus_per_node


def cpus_with_each_gpu(cluster: Cluster, partition: Partition | None) -> int | None:
    """CPUs that Slurm wants with each GPU, however many the tasks have; None: it does not count so.

    Before 22.05, DefCpuPerGPU holds beside the CPUs of the tasks of a node (--ntasks-per-node), one each unless they say
    more: too few are "Requested node configuration is not available", unless --cpus-per-gpu says less (seen on 20.11, and
    not on 22.05).
    """
    release = release_of(cluster)
    return partition.default_cpus_per_gpu if partition and release and release < (22, 5) else None
