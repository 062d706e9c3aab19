"""Nodes as Slurm lists them -> kinds of equal nodes in each partition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from slurmgpu.lines.hostlist import abbreviate, expand
from slurmgpu.models.cluster import NodeGroup
from slurmgpu.models.units import Memory
from slurmgpu.slurm.describing.asking import Record
from slurmgpu.slurm.describing.gres import read_gres
from slurmgpu.slurm.describing.words import words
from slurmgpu.slurm.text import known, whole

__all__ = ["Groups", "Kind", "groups_of", "kinds_of", "state_words"]

# Such a node takes no job now. Nodes in the cloud without power do, and count as there.
_AWAY = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "NO_RESPOND"}
)


@dataclass(frozen=True)
class Kind:
    """What a node is like: nodes of one kind are equal."""

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
    """Each node's kind by its name, and whether it takes jobs now.

    ``whole_cores``: Slurm gives out cores, not their threads (CR_Core, CR_Socket). ``spec_usable``: jobs may have
    what is set apart for the system (AllowSpecResourcesUsage).
    """
    found = {}
    for record in nodes:
        away = bool(_AWAY.intersection(state_words(record.get("State", ""))))
        found[record.get("NodeName", "")] = (_kind(record, whole_cores, spec_usable), not away)
    return found


def state_words(state: str) -> tuple[str, ...]:
    """The words of a node's state, `IDLE+CLOUD+DRAIN*`, without the marks behind them."""
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
    """A partition's nodes by kind, in the order in which Slurm takes them: by weight, then by name.

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
