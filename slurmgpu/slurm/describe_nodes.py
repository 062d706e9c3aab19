"""Nodes, partitions and types of GPU as Slurm lists them -> kinds of equal nodes; GPU memory by names and features."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from slurmgpu.lines.slurm import abbreviate, expand
from slurmgpu.models.cluster import Billing, GpuType, Limits, NodeGroup, Partition
from slurmgpu.models.gpu_models import well_known
from slurmgpu.models.units import Memory
from slurmgpu.slurm.show import Record
from slurmgpu.slurm.text import duration, known, sound, whole, words

__all__ = [
    "GpuTypes", "Groups", "Kind", "NodeGres", "gpu_types_of", "groups_of", "kinds_of", "memory_in_name", "partition_of",
    "preemptible_partitions", "read_gres", "state_words", "well_known_memory",
]  # fmt: skip


_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}


@dataclass(frozen=True)
class NodeGres:
    """The declarations of a node's `Gres=`."""

    gpus: int = 0
    types: dict[str, int] = field(default_factory=dict)
    """GPUs by type; empty where they have none."""
    shards: int | None = None
    others: dict[str, int] = field(default_factory=dict)


def read_gres(text: str) -> NodeGres:
    """Read `gpu:a100:8(S:0-1),shard:16,nvme:3500`; a count's K, M, G are powers of 1024.

    Types are counted only where all GPUs have one: a request can then name it.
    """
    counts: dict[tuple[str, str], int] = {}
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = [part for part in entry.strip().split(":") if part and part != "no_consume"]
        if not parts or parts[0].startswith("(") or not all(map(sound, parts)):
            continue
        number = re.fullmatch(r"(\d{1,15})([KMGTP]?)B?", parts[-1], re.IGNORECASE) if parts[1:] else None
        count = int(number[1]) * _UNITS[number[2].upper()] if number else 1
        name, *rest = parts[:-1] if number else parts
        key = (name, ":".join(rest))
        counts[key] = counts.get(key, 0) + count
    types = {kind: count for (name, kind), count in counts.items() if name == "gpu" and count}
    others: dict[str, int] = {}
    for (name, _), count in counts.items():
        if name not in {"gpu", "shard"}:
            others[name] = others.get(name, 0) + count
    shards = sum(count for (name, _), count in counts.items() if name == "shard")
    return NodeGres(sum(types.values()), {} if "" in types else types, shards or None, others)


def memory_in_name(name: str) -> int | None:
    """Return the GB that a type or feature names: 3g.40gb, nvidia_a100_80gb_pcie, v100-32; the last one counts."""
    found = re.findall(r"(\d{1,4})(?:gb|g(?![a-z0-9.]))", name.lower())
    if not found:
        found = re.findall(r"[a-z]\w*-(\d{2,3})$", name.lower())
    return int(found[-1]) if found and 4 <= int(found[-1]) <= 999 else None


def well_known_memory(name: str) -> tuple[int, tuple[int, ...]] | None:
    """Return the GB of a well-known model by its name, the smallest that is sold, and the other sizes; None: not known."""
    model = well_known(name)
    return (model.memory, model.other_sizes) if model else None


# Such a node takes no job now. Nodes in the cloud without power do, and count as there.
_AWAY = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "NO_RESPOND"}
)


@dataclass(frozen=True)
class Kind:
    """The properties of a node: nodes of one kind are equal."""

    gres: str
    cpus: int | None
    threads_per_core: int | None
    memory_mib: int | None
    features: tuple[str, ...]
    weight: int = field(default=1, compare=False)
    """Slurm takes nodes of less weight first."""


@dataclass
class Groups:
    """A partition's kinds of node, a remark on each ('' for none), and how many of its nodes are not shown."""

    nodes: tuple[NodeGroup, ...] = ()
    remarks: list[str] = field(default_factory=list)
    unseen: int = 0
    guessed: dict[str, str] = field(default_factory=dict)
    """Keys below the partition's that were guessed."""


def kinds_of(
    nodes: Iterable[Record], *, whole_cores: bool, spec_usable: bool
) -> dict[str, tuple[Kind, bool]]:
    """Return each node's kind by its name, and whether it takes jobs now.

    ``whole_cores``: Slurm gives out cores, not their threads (CR_Core, CR_Socket). ``spec_usable``: jobs may have
    what is set apart for the system (AllowSpecResourcesUsage).
    """
    found = {}
    for record in nodes:
        away = bool(_AWAY.intersection(state_words(record.get("State", ""))))
        found[record.get("NodeName", "")] = (_kind(record, whole_cores, spec_usable), not away)
    return found


def state_words(state: str) -> tuple[str, ...]:
    """Return the words of a node's state, `IDLE+CLOUD+DRAIN*`, without the marks behind them."""
    return tuple(word.rstrip("*~#!%$@^-") for word in state.split("+"))


def _kind(record: Record, whole_cores: bool, spec_usable: bool) -> Kind:
    number = {key: whole(record.get(key, "")) or 0 for key in _NUMBERS}
    threads = number["ThreadsPerCore"] or 1
    cores = number["Sockets"] * number["CoresPerSocket"]
    # A node may declare as many CPUs as cores: then a CPU is a core, whatever the hardware has.
    threads_counted = threads if cores and number["CPUTot"] > cores else 1
    cpus = number["CPUTot"]
    if not spec_usable:
        # CPUEfctv came with 22.05.
        cpus = number["CPUEfctv"] or cpus - number["CoreSpecCount"] * threads_counted
    memory = number["RealMemory"] - (0 if spec_usable else number["MemSpecLimit"])
    features = known(record.get("AvailableFeatures", ""))
    return Kind(
        gres=known(record.get("Gres", "")) or "",
        cpus=cpus if cpus > 0 else None,
        threads_per_core=threads_counted if whole_cores and threads_counted > 1 else None,
        # 1 is what Slurm takes where slurm.conf says nothing of memory.
        memory_mib=memory if memory > 1 else None,
        features=words(features or ""),
        weight=number["Weight"],
    )


_NUMBERS = (
    "ThreadsPerCore", "Sockets", "CoresPerSocket", "CPUTot", "CPUEfctv", "CoreSpecCount", "RealMemory",
    "MemSpecLimit", "Weight",
)  # fmt: skip


def groups_of(
    partition: Record,
    kinds: Mapping[str, tuple[Kind, bool]],
    types: Mapping[Kind, str],
    *,
    gpus_counted: bool,
) -> Groups:
    """Return a partition's nodes by kind, in the order in which Slurm takes them: by weight, then by name.

    ``types`` names the GPU type of kinds whose gres has none, or one that does not tell them apart;
    ``gpus_counted``: a partition's totals name its GPUs (AccountingStorageTRES=gres/gpu).
    """
    # 20.11 lists them as slurm.conf does, later releases in this order.
    weights = {name: kind.weight for name, (kind, _) in kinds.items()}
    names = sorted(
        expand(known(partition.get("Nodes", "")) or ""),
        key=lambda name: (weights.get(name, 0), _natural(name)),
    )
    members: dict[Kind, list[str]] = {}
    away: dict[Kind, int] = {}
    missing: list[str] = []
    for name in names:
        if name not in kinds:
            missing.append(name)
            continue
        kind, usable = kinds[name]
        members.setdefault(kind, []).append(name)
        away[kind] = away.get(kind, 0) + (not usable)
    groups = Groups(unseen=len(missing))
    for kind, hosts in members.items():
        groups.nodes += (_group(kind, hosts, types.get(kind)),)
        groups.remarks.append(f"{away[kind]} of them down or drained" if away[kind] else "")
    if missing:
        _add_unseen(groups, partition, missing, members, gpus_counted)
    return groups


_read = cache(read_gres)


def _natural(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d{0,18})", name)]


def _group(kind: Kind, hosts: list[str], gpu_type: str | None) -> NodeGroup:
    gres = _read(kind.gres)
    gpus: int | dict[str, int] = gres.gpus
    if len(gres.types) > 1:
        gpus, gpu_type = dict(gres.types), None
    elif gres.types:
        gpu_type = gpu_type or next(iter(gres.types))
    stated: dict[str, Any] = {
        "count": len(hosts),
        "names": abbreviate(hosts),
        "gpus": gpus,
        "gpu_type": gpu_type if gres.gpus else None,
        "shards": gres.shards,
        "gres": gres.others,
        "cpus": kind.cpus,
        "threads_per_core": kind.threads_per_core,
        "memory": Memory(kind.memory_mib) if kind.memory_mib else None,
        "features": kind.features,
    }
    return NodeGroup(**{key: value for key, value in stated.items() if value})


def _add_unseen(
    groups: Groups,
    partition: Record,
    missing: list[str],
    members: Mapping[Kind, list[str]],
    gpus_counted: bool,
) -> None:
    """A group for nodes that are not shown: what the partition has in all, less what is shown, through their number."""
    # TRES= came with 22.05.
    totals = {
        key: value
        for key, _, value in (part.partition("=") for part in partition.get("TRES", "").split(","))
        if value
    }
    seen_cpus = sum((kind.cpus or 0) * len(hosts) for kind, hosts in members.items())
    seen_gpus = sum(_read(kind.gres).gpus * len(hosts) for kind, hosts in members.items())
    cpus = _share(whole(totals.get("cpu", partition.get("TotalCPUs", ""))), seen_cpus, len(missing))
    gpus = None
    if "gres/gpu" in totals or (totals and gpus_counted):
        gpus = _share(whole(totals.get("gres/gpu", "0")), seen_gpus, len(missing))
    groups.nodes += (NodeGroup(count=len(missing), names=abbreviate(missing), gpus=gpus, cpus=cpus or None),)
    groups.remarks.append("not shown to you")
    place = f"nodes.{len(groups.nodes) - 1}"
    if cpus:
        groups.guessed[f"{place}.cpus"] = "an equal share of what the partition has in all"
    if gpus:
        groups.guessed[f"{place}.gpus"] = "an equal share of what the partition has in all"


def _share(total: int | None, seen: int, number: int) -> int | None:
    rest = (total or 0) - seen
    return rest // number if total is not None and rest >= 0 and rest % number == 0 else None


@dataclass
class GpuTypes:
    """The types, what of them was guessed, and the type of kinds of node whose gres does not say it."""

    types: dict[str, GpuType] = field(default_factory=dict)
    guessed: dict[str, str] = field(default_factory=dict)
    of_kind: dict[Kind, str] = field(default_factory=dict)
    by_constraint: bool = False
    """No GPU has a type in its gres: types are chosen by features."""


def gpu_types_of(kinds: Iterable[Kind]) -> GpuTypes:
    """Types of GPU in these kinds of node.

    One gres type of two sizes, told apart by features (80gb), becomes two types with a constraint. GPUs without
    a type get the name of a well-known model among their nodes' features.
    """
    result = GpuTypes()
    with_gpus = [(kind, read_gres(kind.gres)) for kind in dict.fromkeys(kinds)]
    with_gpus = [(kind, gres) for kind, gres in with_gpus if gres.gpus]
    typed: dict[str, list[Kind]] = {}
    for kind, gres in with_gpus:
        for name in gres.types:
            typed.setdefault(name, []).append(kind)
    for name, group in typed.items():
        _typed(result, name, group)
    untyped = [kind for kind, gres in with_gpus if not gres.types]
    if untyped and not typed:
        for kind in untyped:
            _untyped(result, kind)
    return result


def _typed(result: GpuTypes, name: str, kinds: list[Kind]) -> None:
    named = memory_in_name(name)
    if named is not None:
        result.types[name] = GpuType(memory=Memory(named * 1024))
        return
    # A node with several types does not say which of them its feature is about.
    sizes = {kind: _feature(kind) for kind in kinds if len(read_gres(kind.gres).types) == 1}
    by_size: dict[tuple[str, int], list[Kind]] = {}
    for kind, feature in sizes.items():
        if feature:
            by_size.setdefault(feature, []).append(kind)
    if len({gb for _, gb in by_size}) > 1:
        _split(result, name, by_size)
        return
    if by_size and len(sizes) == len(kinds) and all(sizes.values()):
        found, gb = next(iter(by_size))
        result.types[name] = GpuType(memory=Memory(gb * 1024))
        result.guessed[f"gpu_types.{name}.memory"] = f"its nodes have the feature {found}"
        return
    result.types[name] = _guess(result, name, name)


def _split(result: GpuTypes, name: str, by_size: dict[tuple[str, int], list[Kind]]) -> None:
    """The smallest keeps the plain name, which Slurm fills with any of them."""
    (_, least), *larger = sorted(by_size, key=lambda found: found[1])
    result.types[name] = GpuType(memory=Memory(least * 1024))
    result.guessed[f"gpu_types.{name}.memory"] = "the smallest that a feature of its nodes names"
    for feature, gb in larger:
        if gb == least:
            continue
        split = f"{name}-{gb}"
        result.types[split] = GpuType(memory=Memory(gb * 1024), gres=name, constraint=feature)
        result.guessed[f"gpu_types.{split}"] = f"some nodes with {name} have the feature {feature}"
        result.of_kind |= dict.fromkeys(by_size[feature, gb], split)


def _untyped(result: GpuTypes, kind: Kind) -> None:
    for feature in kind.features:
        if well_known_memory(feature):
            size = _feature(kind)
            gpu_type = GpuType(
                memory=Memory(size[1] * 1024) if size else _guess(result, feature, feature).memory,
                constraint=feature,
            )
            if result.types.setdefault(feature, gpu_type) != gpu_type:
                return
            result.guessed[f"gpu_types.{feature}.constraint"] = (
                "its GPUs have no type in Slurm, and the feature has a model's name"
            )
            result.of_kind[kind] = feature
            result.by_constraint = True
            return


def _guess(result: GpuTypes, key: str, name: str) -> GpuType:
    found = well_known_memory(name)
    if found is None:
        return GpuType()
    gb, others = found
    also = f"; it is also sold with {' or '.join(map(str, others))} GB" if others else ""
    result.guessed[f"gpu_types.{key}.memory"] = f"what is known of this model{also}"
    return GpuType(memory=Memory(gb * 1024))


def _feature(kind: Kind) -> tuple[str, int] | None:
    """Return the feature that says how large a node's GPUs are."""
    for feature in kind.features:
        gb = memory_in_name(feature)
        if gb is not None:
            return feature, gb
    return None


_STATES = {"DOWN": "down", "DRAIN": "drain", "INACTIVE": "inactive"}


def partition_of(
    record: Record, config: Mapping[str, str], nodes: tuple[NodeGroup, ...], *, preemptible: bool
) -> Partition:
    """Return the partition with these nodes; what it does not say itself, slurm.conf says for all."""
    jobs = _defaults(config.get("JobDefaults", "")) | _defaults(record.get("JobDefaults", ""))
    per_cpu = _memory(record, "DefMemPerCPU")
    if per_cpu is None and _memory(record, "DefMemPerNode") is None:
        per_cpu = _memory(config, "DefMemPerCPU")
    own_qos = known(record.get("QoS", "")) or ""
    stated: dict[str, Any] = {
        "nodes": nodes,
        "limits": _limits(record, config),
        "preemptible": preemptible or None,
        # Only jobs in a reservation run there.
        "by_name": record.get("ReqResv") == "YES" or None,
        "state": _STATES.get(record.get("State", "")),
        "whole_nodes": _whole_nodes(record, config),
        "accounts": _only(record, "AllowAccounts"),
        "denied_accounts": _only(record, "DenyAccounts"),
        "groups": ("root",) if record.get("RootOnly") == "YES" else _only(record, "AllowGroups"),
        "qos": _only(record, "AllowQos"),
        "denied_qos": _only(record, "DenyQos"),
        "own_qos": own_qos if sound(own_qos) else None,
        "default_memory_per_cpu": per_cpu,
        "default_memory_per_gpu": Memory(jobs["DefMemPerGPU"]) if jobs.get("DefMemPerGPU") else None,
        "default_cpus_per_gpu": jobs.get("DefCpuPerGPU") or None,
        "billing": _billing(record, config),
    }  # fmt: skip
    return Partition(**{key: value for key, value in stated.items() if value is not None})


def _whole_nodes(record: Record, config: Mapping[str, str]) -> bool | None:
    # From 26.05 on Exclusive=NODE says what OverSubscribe=EXCLUSIVE said before.
    if record.get("OverSubscribe") == "EXCLUSIVE" or record.get("Exclusive") in {"NODE", "TOPO"}:
        return True
    return True if config.get("SelectType", "").endswith("/linear") else None


def _limits(record: Record, config: Mapping[str, str]) -> Limits:
    per_node, per_cpu = _memory(record, "MaxMemPerNode"), _memory(record, "MaxMemPerCPU")
    if per_node is None and per_cpu is None:
        per_node, per_cpu = _memory(config, "MaxMemPerNode"), _memory(config, "MaxMemPerCPU")
    least = whole(record.get("MinNodes", ""))
    stated = {
        "max_time": duration(record.get("MaxTime", "")),
        "default_time": duration(record.get("DefaultTime", "")),
        "min_nodes": least if least and least > 1 else None,
        "max_nodes": whole(record.get("MaxNodes", "")) or None,
        "max_cpus_per_node": whole(record.get("MaxCPUsPerNode", "")) or None,
        "max_memory": per_node,
        "max_memory_per_cpu": per_cpu,
    }
    return Limits.model_validate({key: value for key, value in stated.items() if value is not None})


def _memory(record: Mapping[str, str], key: str) -> Memory | None:
    mib = whole(record.get(key, ""))
    return Memory(mib) if mib else None


def _only(record: Record, key: str) -> tuple[str, ...]:
    text = known(record.get(key, "")) or "ALL"
    return () if text == "ALL" else words(text)


def _defaults(text: str) -> dict[str, int]:
    """`DefCpuPerGPU=8,DefMemPerGPU=60000`."""
    pairs = (entry.partition("=") for entry in words(text))
    return {name: number for name, _, value in pairs if (number := whole(value)) is not None}


_WEIGHT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.IGNORECASE)
_MIB_OF = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


def _billing(record: Record, config: Mapping[str, str]) -> Billing | None:
    weights: dict[str, float] = {}
    for entry in words(known(record.get("TRESBillingWeights", "")) or ""):
        name, _, value = entry.partition("=")
        match = _WEIGHT.fullmatch(value)
        if match:
            # A weight is for one of what the TRES is counted in, or for as many as its suffix says.
            weights[name.lower()] = float(match[1]) / (
                _MIB_OF[match[2].upper()] if name.lower() == "mem" else 1
            )
    if not weights:
        return None
    gpu = weights.get("gres/gpu", 0.0)
    types = {
        name.removeprefix("gres/gpu:"): one for name, one in weights.items() if name.startswith("gres/gpu:")
    }
    flags = words(config.get("PriorityFlags", "").upper())
    stated: dict[str, Any] = {
        "gpu": gpu,
        # Slurm counts a typed GPU under gres/gpu, too, and charges both.
        "gpu_by_type": {name: one + gpu for name, one in types.items()},
        "cpu": weights.get("cpu"),
        "memory": round(weights.get("mem", 0.0) * 1024, 6),
        "node": weights.get("node"),
        "combine": "max" if any(flag.startswith("MAX_TRES") for flag in flags) else None,
    }
    return Billing(**{key: value for key, value in stated.items() if value})


def preemptible_partitions(partitions: Iterable[Record], config: Mapping[str, str]) -> set[str]:
    """Partitions whose jobs can be stopped for those of a higher PriorityTier on the same nodes."""
    partitions = list(partitions)
    if not config.get("PreemptType", "").endswith("/partition_prio"):
        return set()
    nodes = {
        record["PartitionName"]: set(expand(known(record.get("Nodes", "")) or "")) for record in partitions
    }
    tier = {record["PartitionName"]: whole(record.get("PriorityTier", "")) or 0 for record in partitions}
    return {
        record["PartitionName"]
        for record in partitions
        if record.get("PreemptMode", "OFF") != "OFF"
        and any(
            tier[other] > tier[record["PartitionName"]] and nodes[other] & nodes[record["PartitionName"]]
            for other in nodes
        )
    }
