"""What the controller is asked about this moment, each thing once; and limits with their use, from its own book.

`scontrol show assoc_mgr`, whose figures read `limit(used)`, tells every user whose site does not hide it (PrivateData).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.models.cluster import Association, QosRule
from slurmgpu.slurm.commands import Answer, Commands, current_user, unreachable
from slurmgpu.slurm.describe import associations_of, qos_rule
from slurmgpu.slurm.nodes_now import (
    KEYS,
    License,
    NodeNow,
    PartitionNow,
    ReservationNow,
    licenses_of,
    nodes_of,
    partitions_of,
    reservations_of,
)
from slurmgpu.slurm.show import (
    CONFIG,
    LICENSES,
    NODES_IN_DETAIL,
    PARTITIONS,
    QOS_FIELDS,
    RESERVATIONS,
    TIMEOUT,
    USER_FIELDS,
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
from slurmgpu.slurm.text import known, meaning_of, seconds, words

__all__ = ["Book", "Holder", "Limit", "Present", "book_command", "parse_book"]


def book_command(user: str, account: str, qos: Sequence[str]) -> list[str]:
    """Return the command for the limits of a user in an account, of the account itself, and of some QOS."""
    what = {"users": user, "accounts": account, "qos": ",".join(qos), "flags": "users,assoc,qos"}
    return [
        "scontrol",
        "-o",
        "show",
        "assoc_mgr",
        *(f"{key}={value}" for key, value in what.items() if value),
    ]


@dataclass(frozen=True)
class Limit:
    """A limit and what is used of it; None: there is no limit, or no use is counted."""

    most: int | None
    used: int | None = None


@dataclass(frozen=True)
class Holder:
    """Whose limits these are: an association (account, user or '', partition or ''), or a QOS."""

    kind: str
    """``account``, ``user``, ``qos``, ``qos user``, ``qos account``."""
    name: str
    account: str = ""
    user: str = ""
    partition: str = ""
    parent: str = ""
    limits: dict[str, Limit] = field(default_factory=dict)
    """By Slurm's name, and the TRES behind a slash where it has them: `GrpTRES/gres/gpu`, `MaxJobsPU`."""

    def limit(self, *names: str) -> Limit | None:
        """Return the first of these that is limited."""
        found = (self.limits.get(name) for name in names)
        return next((one for one in found if one is not None and one.most is not None), None)

    def use(self, name: str) -> int | None:
        """Return what is used of something, limited or not; None: it is not counted."""
        found = self.limits.get(name)
        return found.used if found else None


@dataclass(frozen=True)
class Book:
    """The holders that were asked for."""

    holders: tuple[Holder, ...]
    default_account: str | None = None

    def find(self, kind: str, **what: str) -> Holder | None:
        """Return the holder of a kind whose fields have these values."""
        return next(
            (
                one
                for one in self.holders
                if one.kind == kind and all(getattr(one, key) == v for key, v in what.items())
            ),
            None,
        )


_NUMBER = r"(?:N|\d+(?:\.\d+)?)"
# GrpJobs=N(0)  MaxJobs=2  GrpWall=N(12.50)  GrpTRES=cpu=N(4),gres/gpu=8(2)  MaxWallPJ=60
_TRES_KEYS = re.compile(r"(?:Grp|Max|Min)TRES\w*")
_KEY = re.compile(r"(?:^|\s)((?:Grp|Max|Min)\w+)=(\S*)")
_PAIR = re.compile(rf"({_NUMBER})?(?:\(({_NUMBER})\))?")


def _limits(text: str) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    for key, value in _KEY.findall(text):
        if _TRES_KEYS.fullmatch(key):
            for entry in value.split(","):
                name, _, amount = entry.rpartition("=")
                if name and (limit := _limit(amount)):
                    found.setdefault(f"{key}/{name}", limit)
        elif (limit := _limit(value)) is not None:
            found.setdefault(key, limit)
    return found


def _limit(text: str) -> Limit | None:
    match = _PAIR.fullmatch(text)
    if not match or not text:
        duration = seconds(text)
        return Limit(duration) if duration is not None else None
    most, used = (None if part in (None, "N") else int(float(part)) for part in match.groups())
    return Limit(most, 0 if match[2] == "N" else used)


_HEAD = re.compile(r"^(ClusterName=|QOS=|UserName=)")
_USER = re.compile(r"UserName=(?P<name>[^\s(]+)\((?P<number>\d+)\)(?: DefAccount=(?P<account>\S+))?")
_ASSOCIATION = re.compile(
    r"ClusterName=(?P<cluster>\S*) Account=(?P<account>\S*) UserName=(?P<user>[^\s(]*)\S* Partition=(?P<partition>\S*)"
)
# Account Limits= mygroup={MaxJobsPA=N(1) ...} User Limits= 0={...}; later releases have root(0)={...}.
_NAMED = re.compile(r"(?:^|\s)([^\s={]+?)(?:\(\d+\))?=\{([^}]*)\}")


def parse_book(text: str) -> Book:
    """Read what `book_command` prints, in one line or in several a record."""
    holders: list[Holder] = []
    default = None
    names: dict[str, str] = {}
    for record in _records(text):
        if user := _USER.match(record):
            names[user["number"]] = user["name"]
            default = default or user["account"]
        elif record.startswith("QOS="):
            holders += _qos(record, names)
        elif match := _ASSOCIATION.match(record):
            parent = re.search(r"ParentAccount=([^\s(]*)", record)
            holders.append(
                Holder(
                    kind="user" if match["user"] else "account",
                    name=match["user"] or match["account"],
                    account=match["account"],
                    user=match["user"],
                    partition=match["partition"],
                    parent=parent[1] if parent else "",
                    limits=_limits(record),
                )
            )
    return Book(tuple(holders), default)


def _records(text: str) -> Iterator[str]:
    held: list[str] = []
    for line in text.split("\n"):
        if _HEAD.match(line):
            if held:
                yield " ".join(held)
            held = [line]
        elif held and line.strip() and not line.endswith(" Records"):
            held.append(line.strip())
    if held:
        yield " ".join(held)


def _qos(record: str, names: Mapping[str, str]) -> Iterator[Holder]:
    """Yield a QOS, and what it lets each account and each user have; users stand there by their numbers."""
    match = re.match(r"QOS=([^\s(]+)", record)
    name = match[1] if match else ""
    own, _, rest = record.partition("Account Limits")
    accounts, _, users = rest.partition("User Limits")
    yield Holder("qos", name, limits=_limits(own))
    for account, limits in _NAMED.findall(accounts):
        yield Holder("qos account", name, account=account, limits=_limits(limits))
    for user, limits in _NAMED.findall(users):
        yield Holder("qos user", name, user=names.get(user, user), limits=_limits(limits))


T = TypeVar("T")
_MOST_PARENTS = 5
# 24.11 has no field Exclusive, and 26.05 has one; with releases between the two it is tried.
_FIRST_WITH_EXCLUSIVE = 25


def _missing_parent(book: Book, account: str) -> str | None:
    """Return the first account above another that the book does not have."""
    seen = set[str]()
    while account and account not in seen:
        seen.add(account)
        found = book.find("account", account=account)
        if found is None:
            return account
        account = found.parent
    return None


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
            above = _missing_parent(book, account)
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
