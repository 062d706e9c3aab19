"""The cluster at this moment, each thing asked of the controller once: nodes, partitions, reservations, licences, limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, TypeVar

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.lines.slurm import expand
from slurmgpu.models.cluster import Association, QosRule
from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.slurm.book import Book, book_command, parse_book
from slurmgpu.slurm.commands import Answer, Commands, current_user, unreachable
from slurmgpu.slurm.describe import associations_of, qos_rule
from slurmgpu.slurm.describe_nodes import Kind, gpu_types_of, kinds_of, partition_of, read_gres, state_words
from slurmgpu.slurm.show import (
    CONFIG,
    LICENSES,
    NODE_KEYS,
    NODES_IN_DETAIL,
    PARTITIONS,
    QOS_FIELDS,
    RESERVATIONS,
    TIMEOUT,
    USER_FIELDS,
    Record,
    clean,
    configuration,
    one_line,
    qos_command,
    records,
    rows,
    user_command,
)
from slurmgpu.slurm.squeue import (
    PARTITION_FIELDS,
    QueuedJob,
    parse_jobs,
    partition_queue_command,
    request_command,
    request_fields,
)
from slurmgpu.slurm.text import known, meaning_of, moment, whole, words

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Partition

__all__ = [
    "UNNAMED",
    "License",
    "NodeNow",
    "PartitionNow",
    "Present",
    "ReservationNow",
    "nodes_of",
    "partitions_of",
]


Away = Literal["", "down", "drained", "reserved", "planned"]
"""Why a node takes no job now; ``planned``: the scheduler keeps it for a job that comes first; '': it takes jobs."""

KEYS = (*NODE_KEYS, "CPUAlloc", "AllocMem", "GresUsed", "AllocTRES", "Partitions")
UNNAMED = "gpu"
"""Name of GPUs that have no type in Slurm and no feature with a model's name."""

# In this order: what is broken is not counted as kept for somebody. Words of slurm.h's NODE_STATE_*, 20.11 to 26.05.
_AWAY: tuple[tuple[Away, frozenset[str]], ...] = (
    ("down", frozenset({
        "DOWN", "ERROR", "FAIL", "FAILING", "UNKNOWN", "FUTURE", "NO_RESPOND", "NOT_RESPONDING", "INVAL", "INVALID_REG",
        "POWERING_DOWN", "POWER_DOWN", "REBOOT_ISSUED", "BLOCKED",
    })),
    ("drained", frozenset({"DRAIN", "DRAINED", "DRAINING"})),
    ("reserved", frozenset({"RESERVED", "MAINT", "MAINTENANCE"})),
    ("planned", frozenset({"PLANNED"})),
)  # fmt: skip
# After a word: it does not answer, it is powered down or going to be, it is for maintenance (sinfo's manual page).
_MARKS: dict[str, str] = {
    "*": "NO_RESPOND",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}


@dataclass(frozen=True)
class NodeNow:
    """One node. Memory is in MiB; CPUs and memory are those that jobs may have."""

    name: str
    state: str
    """Its state in Slurm's own words."""
    away: Away
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    cpus_used: int = 0
    memory: int | None = None
    memory_used: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs, or slices of them, by type."""
    gpus_used: Mapping[str, int] = field(default_factory=dict)
    """Those that are given out, whole or as shards."""
    shards: int = 0
    shards_used: int = 0
    features: tuple[str, ...] = ()

    def free(self, gpu_type: str | None = None) -> int:
        """GPUs that no job has, of one type or of all; on a node that takes no jobs, too."""
        types = self.gpus if gpu_type is None else [name for name in self.gpus if name == gpu_type]
        return sum(max(0, self.gpus[name] - self.gpus_used.get(name, 0)) for name in types)

    @property
    def cpus_free(self) -> int:
        """CPUs that no job has."""
        return max(0, self.cpus - self.cpus_used)

    @property
    def memory_free(self) -> int | None:
        """MiB that no job has; None where the site says nothing of memory."""
        return None if self.memory is None else max(0, self.memory - self.memory_used)

    @property
    def slices(self) -> bool:
        """True if its GPUs are slices (MIG)."""
        return any(map(names_a_slice, self.gpus))


def nodes_of(records: Iterable[Record], config: Mapping[str, str]) -> list[NodeNow]:
    """Return the nodes of these records, in the controller's order; ``config`` is slurm.conf's."""
    records = list(records)
    kinds = kinds_of(
        records,
        whole_cores=False,
        spec_usable=config.get("AllowSpecResourcesUsage", "").upper() in {"YES", "1"},
    )
    types = gpu_types_of(kind for kind, _ in kinds.values()).of_kind
    memory_counts = "MEMORY" in config.get("SelectTypeParameters", "").upper()
    return [_node(record, kinds[record["NodeName"]][0], types, memory_counts) for record in records]


def _node(record: Record, kind: Kind, types: Mapping[Kind, str], memory_counts: bool) -> NodeNow:
    state = record.get("State", "")
    has = read_gres(kind.gres)
    named = types.get(kind)
    gpus = dict(has.types)
    if has.gpus and (not gpus or (named and len(gpus) == 1)):
        gpus = {named or UNNAMED: has.gpus}
    used_text = known(record.get("GresUsed", "")) or ""
    return NodeNow(
        name=record["NodeName"],
        state=state,
        away=_away(state),
        partitions=words(known(record.get("Partitions", "")) or ""),
        cpus=kind.cpus or 0,
        cpus_used=whole(record.get("CPUAlloc", "")) or 0,
        memory=kind.memory_mib if memory_counts else None,
        memory_used=whole(record.get("AllocMem", "")) or 0,
        gpus=gpus,
        gpus_used=_used(used_text, record.get("AllocTRES", ""), gpus),
        shards=has.shards or 0,
        shards_used=_shards_used(used_text),
        features=kind.features,
    )


def _away(state: str) -> Away:
    found = set(state_words(state))
    found |= {name for mark, name in _MARKS.items() if any(word.endswith(mark) for word in state.split("+"))}
    return next((away for away, names in _AWAY if names & found), "")


# shard:l40s:3(3/4,-/4,0/4,0/4): of each GPU; a dash where it is given out whole.
_SHARES = re.compile(r"shard:[^(,]*\(([^)]*)\)")
_SHARE = re.compile(r"(\d+|-)/(\d{1,9})")


def _shards_used(used: str) -> int:
    """Shards that nobody else can have: those that are taken, and all of a GPU that is."""
    shares = [share for text in _SHARES.findall(used) for share in _SHARE.findall(text)]
    if not shares:
        return read_gres(used.replace("(null)", "")).shards or 0
    return sum(int(there if taken == "-" else taken) for taken, there in shares)


def _used(used: str, allocated: str, gpus: Mapping[str, int]) -> dict[str, int]:
    """GPUs that jobs have, by the types of ``gpus``.

    `gpu:a100:2(IDX:0-1),shard:a100:3(3/4,0/4)`: a GPU of which a shard is taken cannot be had whole. Where the node does
    not say what is used, the TRES that are accounted for do, as far as the site counts GPUs.
    """
    if not gpus:
        return {}
    told = read_gres(used.replace("(null)", "")) if used else read_gres(_as_gres(allocated))
    by_type = told.types if set(told.types) <= set(gpus) else {}
    if not by_type:
        by_type = {next(iter(gpus)): told.gpus} if len(gpus) == 1 else _spread(told.gpus, gpus)
    shared = sum(
        taken not in ("0", "-") for text in _SHARES.findall(used) for taken, _ in _SHARE.findall(text)
    )
    if shared:
        first = next(iter(gpus))
        by_type = {**by_type, first: min(gpus[first], by_type.get(first, 0) + shared)}
    return dict(by_type)


def _as_gres(allocated: str) -> str:
    """`cpu=4,gres/gpu=2,gres/gpu:a100=2` as GRES: the types where there are any, else the total."""
    found = re.findall(r"(?:^|,)gres/gpu(:[^=,]+)?=(\d{1,9})", allocated)
    typed = [f"gpu{name}:{count}" for name, count in found if name]
    return ",".join(typed or [f"gpu:{count}" for _, count in found])


def _spread(count: int, gpus: Mapping[str, int]) -> dict[str, int]:
    """Return a number without types, over the types in their order."""
    result = {}
    for name, there in gpus.items():
        result[name] = min(there, count)
        count -= result[name]
    return result


@dataclass(frozen=True)
class PartitionNow:
    """A partition, its rules as a profile has them, and its place in the order."""

    name: str
    rules: Partition
    hosts: frozenset[str]
    tier: int
    """PriorityTier: jobs of a higher one come first."""
    default: bool
    state: str
    """UP, DOWN, DRAIN or INACTIVE."""


def partitions_of(records: Iterable[Record], config: Mapping[str, str]) -> dict[str, PartitionNow]:
    """Return the partitions by name."""
    return {
        one["PartitionName"]: PartitionNow(
            name=one["PartitionName"],
            rules=partition_of(one, config, (), preemptible=False),
            hosts=frozenset(expand(known(one.get("Nodes", "")) or "")),
            tier=whole(one.get("PriorityTier", "")) or 0,
            default=one.get("Default") == "YES",
            state=one.get("State", "").upper() or "UP",
        )
        for one in records
    }


@dataclass(frozen=True)
class ReservationNow:
    """A reservation: when, which nodes, and whose."""

    name: str
    start: datetime | None
    end: datetime | None
    hosts: frozenset[str]
    state: str
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    maintenance: bool = False


def reservations_of(records: Iterable[Record]) -> dict[str, ReservationNow]:
    """Return the reservations by name."""
    return {
        one["ReservationName"]: ReservationNow(
            name=one["ReservationName"],
            start=moment(one.get("StartTime", "")),
            end=moment(one.get("EndTime", "")),
            hosts=frozenset(expand(known(one.get("Nodes", "")) or "")),
            state=one.get("State", ""),
            users=words(known(one.get("Users", "")) or ""),
            accounts=words(known(one.get("Accounts", "")) or ""),
            maintenance="MAINT" in words(one.get("Flags", "")),
        )
        for one in records
    }


@dataclass(frozen=True)
class License:
    """A licence and how many of it are free."""

    total: int | None
    free: int | None


def licenses_of(records: Iterable[Record]) -> dict[str, License]:
    """Return the licences by name."""
    return {
        one["LicenseName"]: License(whole(one.get("Total", "")), whole(one.get("Free", "")))
        for one in records
    }


T = TypeVar("T")
_MOST_PARENTS = 5
# 24.11 has no field Exclusive, and 26.05 has one; with releases between the two it is tried.
_FIRST_WITH_EXCLUSIVE = 25


class Present:
    """The cluster at this moment. What could not be had is None, and named with the reason in ``unknown``.

    Each property is one command, asked when it is first wanted, and remembered. Raises SlurmUnreachable where the
    controller does not answer at all.
    """

    def __init__(self, slurm: Commands) -> None:
        self._slurm = slurm
        self.unknown: dict[str, str] = {}

    @cached_property
    def config(self) -> dict[str, str]:
        """slurm.conf as the controller has it; {} where it does not tell."""
        answer = self._slurm.ask(CONFIG, timeout=TIMEOUT)
        if meaning_of(answer) in {"no answer", "lost"}:
            raise unreachable(answer)
        found = configuration(clean(answer.stdout))
        if not found:
            self.unknown["configuration"] = f"`scontrol show config` said: {one_line(answer)}"
        return found

    @cached_property
    def cluster(self) -> str | None:
        """The cluster's name."""
        return known(self.config.get("ClusterName", ""))

    def hides(self, what: str) -> bool:
        """Return True if users do not see others' ``jobs``, ``usage``, ``reservations`` or ``nodes`` here (PrivateData).

        Slurm's own user and root see all; where the configuration is not told, everything may be hidden.
        """
        if not self.config:
            return True
        mighty = {"root", self.config.get("SlurmUser", "").partition("(")[0]}
        return what in words(self.config.get("PrivateData", "")) and current_user() not in mighty

    @cached_property
    def nodes(self) -> list[NodeNow] | None:
        """All nodes that the user may see, with what is given out of them."""
        return self._read(
            "nodes",
            NODES_IN_DETAIL,
            lambda text: nodes_of(records(text, KEYS), self.config),
        )

    @cached_property
    def partitions(self) -> dict[str, PartitionNow] | None:
        """All partitions."""
        return self._read("partitions", PARTITIONS, lambda text: partitions_of(records(text), self.config))

    @cached_property
    def reservations(self) -> dict[str, ReservationNow] | None:
        """All reservations that the user may see."""
        return self._read("reservations", RESERVATIONS, lambda text: reservations_of(records(text)))

    @cached_property
    def licenses(self) -> dict[str, License] | None:
        """All licences."""
        return self._read("licenses", LICENSES, lambda text: licenses_of(records(text)))

    def queue(self, partitions: Sequence[str]) -> list[QueuedJob] | None:
        """Everybody's unfinished jobs in some partitions, as far as the user may see them."""
        command = partition_queue_command(partitions)
        return self._read("queue", command, lambda text: parse_jobs(text, PARTITION_FIELDS))

    def request_of(self, number: int) -> list[QueuedJob]:
        """Return what a job asks for, by its plain number: a row for each task of an array that is by itself."""
        # An older squeue, or one in between, has no field Exclusive: then it is asked without.
        for exclusive in (True, False) if self._has_exclusive else (False,):
            fields = request_fields(exclusive=exclusive)
            self.unknown.pop("request", None)
            found = self._read("request", request_command(number, fields), partial(parse_jobs, fields=fields))
            if found is not None:
                return found
        return []

    @property
    def _has_exclusive(self) -> bool:
        release = re.match(r"(\d{1,4})\.", self.config.get("SLURM_VERSION", ""), re.ASCII)
        return release is not None and int(release[1]) >= _FIRST_WITH_EXCLUSIVE

    def book(self, user: str, account: str, qos: Sequence[str]) -> Book | None:
        """Return the limits of a user, an account and some QOS, with what is used of them."""
        if self.hides("usage") or self.hides("users"):
            self.unknown["limits"] = "this site does not show its users what others use (PrivateData)"
            return None
        return self._read("limits", book_command(user, account, qos), parse_book)

    def with_parents(self, book: Book, user: str, account: str) -> Book:
        """Return the book with the accounts above an account: a command for each of these, five at most."""
        for _ in range(_MOST_PARENTS):
            above = book.missing_parent(account)
            more = self._read("limits", book_command(user, above, ()), parse_book) if above else None
            if more is None:
                break
            book = Book(
                (*book.holders, *(one for one in more.holders if one.kind == "account")), book.default_account
            )
        return book

    def associations(self, user: str) -> tuple[tuple[Association, ...], str | None] | None:
        """Return the user's accounts with their QOS and limits, from accounting, and the default account."""
        found = self._read(
            "associations",
            user_command(user, self.cluster or ""),
            lambda text: rows(text, USER_FIELDS),
        )
        return None if found is None else associations_of(found, ())

    def qos_rules(self) -> dict[str, QosRule] | None:
        """Return the limits of all QOS, from accounting."""
        found = self._read("qos", qos_command(), lambda text: rows(text, QOS_FIELDS))
        return None if found is None else {one["name"]: qos_rule(one, preemptible=False) for one in found}

    def _read(self, what: str, argv: Sequence[str], parse: Callable[[str], T]) -> T | None:
        answer = self._ask(argv)
        if not answer.ok:
            command = " ".join(word for word in argv if len(word) < 60)
            self.unknown[what] = f"`{command}` said: {one_line(answer)}"
            return None
        return parse(answer.stdout if argv[0] == "squeue" else clean(answer.stdout))

    def _ask(self, argv: Sequence[str]) -> Answer:
        try:
            return self._slurm.ask(argv, timeout=TIMEOUT)
        except (SlurmRefused, SlurmUnreachable) as error:
            return Answer(tuple(argv), None, "", error.message)
