"""Limits with their use, from the controller's own book: `scontrol show assoc_mgr`, whose figures read `limit(used)`.

It tells every user whose site does not hide it (PrivateData).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurmgpu.slurm.text import seconds

__all__ = ["Book", "Holder", "Limit", "book_command", "parse_book"]


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
    """The holder of limits: an association (account, user or '', partition or ''), or a QOS."""

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

    def missing_parent(self, account: str) -> str | None:
        """Return the first account above another that the book does not have."""
        seen = set[str]()
        while account and account not in seen:
            seen.add(account)
            found = self.find("account", account=account)
            if found is None:
                return account
            account = found.parent
        return None

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
