"""GPUs by type and partition at this moment: how many there are, are used, are free, and could be had by a job of mine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurmgpu.columns import aligned
from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Book, NodeNow, PartitionNow, Present

__all__ = ["GpusNow", "Mine", "Row", "could", "gpus_now", "gpus_table", "kind", "notes", "place", "who"]

_AWAY = ("down", "drained", "reserved", "planned")


@dataclass(frozen=True)
class Row:
    """The GPUs of a type, in a partition or in all."""

    type: str
    partition: str | None
    """None: the whole cluster, each node once."""
    slices: bool
    """They are slices of GPUs (MIG)."""
    nodes: int
    total: int
    used: int
    free: int
    """On nodes that take jobs, and have a CPU and memory left."""
    block: int
    """The most of these on one node."""
    whole_nodes: int
    """Nodes on which all GPUs of the type are free."""
    stranded: int
    """GPUs without a job on nodes whose CPUs or memory are used up: no job can have them."""
    stranded_for: tuple[str, ...] = ()
    """``CPUs``, ``memory``."""
    away: Mapping[str, int] = field(default_factory=dict)
    """GPUs without a job on nodes that take none now: down, drained, reserved, or planned for a waiting job."""
    shards: int = 0
    shards_free: int = 0


@dataclass(frozen=True)
class Mine:
    """The GPUs that one job of mine could get in a partition now, by what is free and by the limits that are known."""

    partition: str
    type: str
    gpus: int | None
    """None: not known."""
    why: str
    """The bound: ``free``, or a limit in words."""
    known: bool = True
    """True if the limits of account and QOS were known, too."""


@dataclass(frozen=True)
class GpusNow:
    """The whole answer."""

    cluster: str | None
    types: tuple[Row, ...]
    partitions: tuple[Row, ...]
    mine: tuple[Mine, ...]
    account: str | None
    qos: str | None
    unknown: Mapping[str, str]


def gpus_now(present: Present, user: str) -> GpusNow:
    """Ask for nodes and partitions, and for the user's account, QOS and what they use: 5 commands.

    Raises SlurmUnreachable where the controller does not answer.
    """
    present.config  # noqa: B018 (it says first whether anybody answers)
    nodes = [node for node in present.nodes or () if node.gpus or node.shards]
    partitions = present.partitions or {}
    types = list(dict.fromkeys(name for node in nodes for name in node.gpus))
    by_name = {node.name: node for node in nodes}
    rows = []
    for one in partitions.values():
        here = [by_name[host] for host in sorted(one.hosts) if host in by_name]
        rows += [_row(name, one.name, here) for name in types if any(name in node.gpus for node in here)]
    limits = _Limits(present, user)
    there = (row for row in rows if row.partition in partitions)
    return GpusNow(
        cluster=present.cluster,
        types=tuple(_row(name, None, nodes) for name in types),
        partitions=tuple(rows),
        mine=tuple(limits.mine(partitions[row.partition or ""], row, nodes) for row in there),
        account=limits.account,
        qos=limits.qos,
        unknown=dict(present.unknown),
    )


def _lacks(node: NodeNow) -> list[str]:
    """Return what a node has none left of that every job needs."""
    return (["CPUs"] if not node.cpus_free else []) + (["memory"] if node.memory_free == 0 else [])


def _row(name: str, partition: str | None, nodes: Iterable[NodeNow]) -> Row:
    mine = [node for node in nodes if name in node.gpus]
    there = [node for node in mine if not node.away]
    able = [node for node in there if not _lacks(node)]
    stranded = [node for node in there if _lacks(node) and node.free(name)]
    away = {why: sum(node.free(name) for node in mine if node.away == why) for why in _AWAY}
    lacking = dict.fromkeys(what for node in stranded for what in _lacks(node))
    return Row(
        type=name,
        partition=partition,
        slices=names_a_slice(name),
        nodes=len(mine),
        total=sum(node.gpus[name] for node in mine),
        used=sum(min(node.gpus[name], node.gpus_used.get(name, 0)) for node in mine),
        free=sum(node.free(name) for node in able),
        block=max((node.free(name) for node in able), default=0),
        whole_nodes=sum(node.free(name) == node.gpus[name] for node in able),
        stranded=sum(node.free(name) for node in stranded),
        stranded_for=tuple(lacking),
        away={why: count for why, count in away.items() if count},
        shards=sum(node.shards for node in mine),
        shards_free=sum(max(0, node.shards - node.shards_used) for node in able),
    )


class _Limits:
    """The limits of the user's account and QOS on one job."""

    def __init__(self, present: Present, user: str) -> None:
        self.user, self.present = user, present
        self.keeps_accounts = "slurmdbd" in present.config.get("AccountingStorageType", "")
        found = present.associations(user) if self.keeps_accounts else None
        associations, self.account = found or ((), None)
        mine = (one for one in associations if one.account == self.account and one.partition is None)
        own = next(mine, None)
        # A job of an account without a default one gets the QOS normal.
        self.qos = (own.default_qos or ("normal" if "normal" in own.qos else None)) if own else None
        of_partitions = {one.rules.own_qos for one in (present.partitions or {}).values()}
        qos = tuple(sorted(name for name in {self.qos, *of_partitions} if name))
        self.book: Book | None = present.book(user, self.account, qos) if self.account else None
        self.rules = (present.qos_rules() if self.book else None) or {}

    def mine(self, partition: PartitionNow, row: Row, nodes: Sequence[NodeNow]) -> Mine:
        """Return the most GPUs of a type that a job could have there now."""
        if closed := self._closed(partition):
            return Mine(partition.name, row.type, 0, closed)
        here = [node for node in nodes if node.name in partition.hosts and not node.away]
        if partition.rules.whole_nodes:
            free = [node.free(row.type) for node in here if not node.cpus_used]
        else:
            free = sorted((node.free(row.type) for node in here if not _lacks(node)), reverse=True)
        most = partition.rules.limits.max_nodes
        bounds = [(sum(free if most is None else free[:most]), "free"), *self._of_book(row.type, partition)]
        least, why = min(bounds, key=lambda one: one[0])
        return Mine(partition.name, row.type, least, why, self.book is not None or not self.keeps_accounts)

    def _closed(self, partition: PartitionNow) -> str:
        rules = partition.rules
        if partition.state != "UP":
            return f"the partition is {partition.state}"
        if rules.by_name:
            return "only for jobs in a reservation"
        if self.account and not rules.takes_account(self.account):
            return f"{'not open' if rules.accounts else 'closed'} to account {self.account}"
        if self.qos and not rules.takes_qos(self.qos):
            return f"{'not open' if rules.qos else 'closed'} to QOS {self.qos}"
        return ""

    def _of_book(self, gpu_type: str, partition: PartitionNow) -> Iterator[tuple[int, str]]:
        """Yield what each limit leaves to one more job, and the limit in words."""
        if self.book is None:
            return
        qos = {name for name in (self.qos, partition.rules.own_qos) if name}
        holders, user, account = self.book.holders, self.user, self.account or ""
        # An association of this partition stands in the place of the user's general one.
        there = any(one.kind == "user" and one.partition == partition.name for one in holders)
        for holder in holders:
            if holder.kind.startswith("qos"):
                counts = holder.name in qos and holder.account in ("", account)
            else:
                counts = holder.account == account
            if not counts or holder.user not in ("", user):
                continue
            if holder.kind == "user" and holder.partition != (partition.name if there else ""):
                continue
            whose = {"account": f"account {holder.name}", "user": "you"}.get(
                holder.kind, f"QOS {holder.name}"
            )
            for key, limit in holder.limits.items():
                name, _, tres = key.partition("/")
                if limit.most is None or tres not in ("gres/gpu", f"gres/gpu:{gpu_type}"):
                    continue
                if name in ("GrpTRES", "MaxTRESPU", "MaxTRESPA") and limit.used is not None:
                    left = max(0, limit.most - limit.used)
                    yield left, f"{whose}: {limit.used} of {limit.most} used ({name})"
                elif name in ("MaxTRESPJ", "MaxTRES"):
                    yield limit.most, f"{whose}: {limit.most} a job ({name})"
        # Of QOS of which the user has nothing yet, the controller's book does not say what they may have.
        for name in sorted(qos):
            rule = self.rules.get(name)
            if rule is None or self.book.find("qos user", name=name, user=user):
                continue
            each = rule.limits.per_user
            for most in (each.gpus, each.gpus_by_type.get(gpu_type)):
                if most is not None:
                    yield most, f"QOS {name}: 0 of {most} used (MaxTRESPU)"


def kind(row: Row) -> str:
    """Return the type of GPU."""
    return printable(row.type) + (" (slice)" if row.slices else "")


def place(row: Row) -> str:
    """Return the partition, or `all` for the whole cluster."""
    return printable(row.partition) if row.partition else "all"


def could(mine: Mine | None) -> str:
    """Return how many one job of mine could get; empty where that was not asked."""
    if mine is None:
        return ""
    return ("unknown" if mine.gpus is None else str(mine.gpus)) + ("" if mine.known else "?")


def notes(row: Row) -> list[str]:
    """Return what a row of figures cannot say: GPUs that nobody can have, and shards."""
    name, found = printable(row.type), []
    if row.stranded:
        what = " and ".join(row.stranded_for)
        found.append(f"{row.stranded} more {name} without a job, but 0 {what} left on those nodes: not free")
    if row.shards:
        found.append(f"shards of {name}: {row.shards_free} of {row.shards} free")
    return found


def who(found: GpusNow) -> str:
    """Return whose job the figures of `Mine` are for, and how sure they are."""
    if found.account is None:
        return "one job of yours: by what is free alone; no account of yours is known here"
    whose = f"account {printable(found.account)}" + (f" and QOS {printable(found.qos)}" if found.qos else "")
    if any(not one.known for one in found.mine):
        return f"one job of yours: by what is free; the limits of {whose} are not known (?)"
    return f"one job of yours: with {whose}; jobs that wait may come first"


def gpus_table(found: GpusNow) -> list[str]:
    """Return the lines of ``slurmgpu cluster gpus``."""
    if "nodes" in found.unknown:
        return ["which GPUs there are is not known"]
    if not found.types:
        return ["Slurm lists no GPUs on this cluster"]
    mine = {(one.partition, one.type): one for one in found.mine}
    rows = [("GPU", "PARTITION", "TOTAL", "IN USE", "FREE", "ON ONE NODE", "NOT AVAILABLE", "YOURS NOW")]
    for row in (*found.types, *found.partitions):
        own = mine.get((row.partition, row.type)) if row.partition is not None else None
        away = ", ".join(f"{count} {why}" for why, count in row.away.items())
        why = f" ({printable(own.why)})" if own is not None and own.why != "free" else ""
        rows.append((kind(row), place(row), str(row.total), str(row.used), str(row.free), str(row.block), away or "-",
                     f"{could(own)}{why}" or "-"))  # fmt: skip
    lines = list(dict.fromkeys(line for row in found.types for line in notes(row)))
    return [*aligned(rows), "", *lines, who(found)]
