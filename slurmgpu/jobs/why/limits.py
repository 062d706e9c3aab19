"""The limit that holds a job, and whether its partitions take its account and its QOS.

Slurm looks at accounts and QOS when a job is submitted, and later only now and then: rules that have changed since leave a
job with the reason that it had (24.11, 26.05), so that a job that waits for its turn is held against them, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.amounts import count, memory_text, span
from slurmgpu.jobs.waits import LIMIT
from slurmgpu.jobs.why.answer import Case, Fact, Mend, Told, gpus, listed
from slurmgpu.models.cluster import Partition
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.models.run import JobStatus
    from slurmgpu.slurm import Asked, Book, Holder, Limit, QueuedJob

__all__ = ["Held", "account", "barred", "is_free", "limit_facts", "other_qos", "qos"]


class Held(NamedTuple):
    """A limit that is in the job's way."""

    holder: Holder
    fact: Fact
    too_large: bool
    """Whether the job alone is larger than the limit: nobody's end will let it start."""
    most: int
    resource: str
    """``cpus``, ``nodes``, ``memory`` (MiB), ``jobs``, ``seconds``, or Slurm's name of the TRES."""
    minutes: int | None = None
    """Of a budget in minutes of the resource: how many are left; None: it is none."""

    @property
    def sentence(self) -> str:
        """What the limit does to the job."""
        if self.too_large:
            return f"it does not fit a limit even by itself: {self.fact.text}"
        return f"a limit leaves too little for it: {self.fact.text}"

    def counts(self, job: QueuedJob) -> bool:
        """Return True if a running job is one of those that use the limit up; those of accounts below it are not seen."""
        holder = self.holder
        if holder.kind.startswith("qos") and job.qos != holder.name:
            return False
        if holder.account and job.account != holder.account:
            return False
        return not holder.user or job.user == holder.user


# Slurm's TRES by the word in the reason; GRES are looked for by prefix.
_TRES = {
    "Cpu": "cpu", "CPU": "cpu", "Memory": "mem", "Mem": "mem", "Node": "node", "Energy": "energy", "Billing": "billing",
    "GRES": "gres/", "License": "license/", "BB": "bb/", "Unknown": "",
}  # fmt: skip
_OLD = {  # words of releases before 16.05, and of a site's policy
    "AssociationJobLimit": "AssocMaxJobsLimit",
    "QOSJobLimit": "QOSMaxJobsPerUserLimit",
    "AssociationResourceLimit": "AssocGrpGRES",
    "QOSResourceLimit": "QOSMaxGRESPerUser",
}


_OF_ONE_JOB = (
    "QOSMaxGRESPerUser", "QOSMaxGRESPerJob", "QOSMaxGRESPerNode", "QOSGrpGRES", "QOSMinGRES", "QOSMaxCpuPerUserLimit",
    "QOSMaxCpuPerJobLimit", "QOSGrpCpuLimit", "QOSMaxMemoryPerUser", "QOSMaxMemoryPerJob", "QOSGrpMemLimit",
    "QOSMaxNodePerUserLimit", "QOSMaxNodePerJobLimit", "QOSGrpNodeLimit", "QOSMaxWallDurationPerJobLimit", "AssocGrpGRES",
    "AssocMaxGRESPerJob", "AssocGrpCpuLimit", "AssocMaxCpuPerJobLimit", "AssocGrpMemLimit", "AssocGrpNodeLimit",
    "AssocMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit",
)  # fmt: skip


def limit_facts(word: str, job: JobStatus, asked: Asked, book: Book, partition_qos: str | None) -> list[Held]:
    """Return the limits that a reason can mean, the one that is used up first.

    ``partition_qos``: the QOS of the partition itself, whose limits count, too.
    """
    match = LIMIT.fullmatch(_OLD.get(word, word))
    if match is None:
        return []
    found = list(_holding(match, job, asked, book, partition_qos))
    # Nearest to its end first: of several that may be meant, that is the one that holds.
    found.sort(key=_room_left)
    # Behind the limit that Slurm names another may stand, for which the job is too large by itself.
    others = (LIMIT.fullmatch(other) for other in _OF_ONE_JOB)
    more = [
        one
        for other in others
        if other
        for one in _holding(other, job, asked, book, partition_qos)
        if one.too_large
    ]
    known = {one.fact.text for one in found}
    return [*found, *(one for one in more if one.fact.text not in known)]


_OF_A_QOS = (
    *(word for word in _OF_ONE_JOB if word.startswith("QOS")), "QOSMaxJobsPerUserLimit", "QOSGrpJobsLimit",
    "QOSGrpCPURunMinutesLimit", "QOSGrpCPUMinutesLimit", "QOSGrpGRESRunMinutes", "QOSGrpGRESMinutes", "QOSMinCpuNotSatisfied",
)  # fmt: skip


def is_free(qos: str, job: JobStatus, asked: Asked, book: Book) -> bool:
    """Return True if no limit of another QOS would hold the job, as far as the book shows its limits."""
    there = job.model_copy(update={"qos": qos})
    matches = filter(None, map(LIMIT.fullmatch, _OF_A_QOS))
    return not any(True for match in matches for _ in _holding(match, there, asked, book, None))


def _room_left(one: Held) -> float:
    used, asks = one.fact.figures.get("used"), one.fact.figures.get("asked")
    use = used if isinstance(used, int) else 0
    return one.most - use - (asks if isinstance(asks, int) else 0)


def _holding(
    match: re.Match[str], job: JobStatus, asked: Asked, book: Book, partition_qos: str | None
) -> Iterator[Held]:
    for holder, whose in _holders(match, job, book, partition_qos):
        for key, limit in holder.limits.items():
            resource = _meant(match, key)
            if resource is None or limit.most is None:
                continue
            if resource == "seconds":  # the controller counts wall time in minutes
                limit = type(limit)(limit.most * 60, None if limit.used is None else limit.used * 60)
            asks = _asked_of(resource, asked, per_node=match["per"] == "Node")
            if match["minutes"] and asks is not None:
                asks = None if asked.limit is None else asks * -(-asked.limit // 60)
            held = _held(match, resource, limit, (holder, whose), asks)
            # A limit with room for the job is not the one.
            if held.too_large or limit.used is None or limit.used + (asks or 1) > held.most:
                yield held


def _holders(
    match: re.Match[str], job: JobStatus, book: Book, partition_qos: str | None
) -> Iterator[tuple[Holder, str]]:
    if match["whose"] == "Assoc":
        yield from _associations(job, book)
        return
    kind = {"User": "qos user", "Account": "qos account"}.get(match["per"] or "", "qos")
    for name in dict.fromkeys(one for one in (job.qos, partition_qos) if one):
        for holder in book.holders:
            if holder.kind != kind or holder.name != name:
                continue
            if kind == "qos user" and holder.user != job.user:
                continue
            if kind == "qos account" and holder.account != job.account:
                continue
            whose = {
                "qos user": f"your jobs in QOS {name}",
                "qos account": f"account {job.account} in QOS {name}",
            }
            yield holder, whose.get(kind, f"QOS {name}")


def _associations(job: JobStatus, book: Book) -> Iterator[tuple[Holder, str]]:
    """Yield the user's association, its account, and the accounts above that."""
    account = job.account or ""
    for partition in dict.fromkeys([job.partition or "", ""]):
        found = book.find("user", account=account, user=job.user or "", partition=partition)
        if found:
            yield found, f"your jobs in account {account}"
    seen = set()
    while account and account not in seen:
        seen.add(account)
        found = book.find("account", account=account)
        if found is None:
            return
        yield found, f"account {account}"
        account = found.parent


def _meant(match: re.Match[str], key: str) -> str | None:
    """Return what a limit of Slurm's counts, if the reason can mean it."""
    name, _, tres = key.partition("/")
    if not name.startswith(match["kind"]):
        return None
    what, minutes, per = match["what"], match["minutes"], match["per"]
    if what in ("Jobs", "SubmitJob", "SubmitJobs"):
        wanted = "SubmitJobs" if what.startswith("Submit") else "Jobs"
        return "jobs" if re.fullmatch(rf"(?:Grp|Max){wanted}(?:PU|PA)?", name) else None
    if what in ("Wall", "WallDuration"):
        return "seconds" if re.fullmatch(r"GrpWall|MaxWall(?:PJ)?", name) else None
    kind = "TRESRunMins" if minutes.startswith("Run") else "TRESMins" if minutes else "TRES"
    if not re.fullmatch(rf"(?:Grp|Max|Min){kind}(?:{_SUFFIX.get(per or '', '')})?", name):
        return None
    wanted = _TRES[what]
    if wanted.endswith("/") or not wanted:
        return tres if tres.startswith(wanted) else None
    return {"cpu": "cpus", "mem": "memory", "node": "nodes"}.get(tres, tres) if tres == wanted else None


_SUFFIX = {"Job": "PJ", "Node": "PN", "User": "PU", "Account": "PA", "": "PJ"}


def _asked_of(resource: str, asked: Asked, *, per_node: bool) -> int | None:
    """Return what the job would add, on a node or in all; None where that is not known."""
    gpus, cpus, memory = asked.per_node if per_node else (asked.gpus, asked.cpus, asked.memory)
    if resource == "gres/gpu":
        return gpus
    if resource.startswith("gres/gpu:"):
        return gpus if resource.removeprefix("gres/gpu:") in asked.gpu_types else 0
    known = {"cpus": cpus, "nodes": asked.nodes, "memory": memory, "seconds": asked.limit, "jobs": 1}
    return known.get(resource)


def _held(
    match: re.Match[str], resource: str, limit: Limit, who: tuple[Holder, str], asks: int | None
) -> Held:
    holder, whose = who
    assert limit.most is not None
    minutes = bool(match["minutes"])
    least = match["kind"] == "Min"
    alone = asks is not None and (asks < limit.most if least else asks > limit.most)
    thing = f"{_minutes_of(resource)}-minutes" if minutes else None
    if least:
        text = f"{whose} wants {said(limit.most, resource)} at least"
    elif match["per"] in ("Job", "Node") or (resource == "seconds" and match["kind"] == "Max"):
        text = f"{whose} allows {said(limit.most, resource)} {'on a node' if match['per'] == 'Node' else 'for a job'}"
    else:
        text = _used(whose, limit, resource, thing)
    if asks and resource != "jobs":
        text += f"; this job {'may take' if minutes else 'asks for'} {said(asks, resource, thing)}"
    figures = {"whose": whose, "resource": resource, "limit": limit.most, "used": limit.used, "asked": asks}
    left = max(0, limit.most - (limit.used or 0)) if minutes else None
    return Held(holder, Fact("limit", text, figures), alone, limit.most, resource, left)


def _minutes_of(resource: str) -> str:
    return {"cpus": "CPU", "nodes": "node", "memory": "MiB", "gres/gpu": "GPU"}.get(
        resource, printable(resource)
    )


def _used(whose: str, limit: Limit, resource: str, thing: str | None) -> str:
    """`account lab uses 30 of its 32 GPUs`."""
    assert limit.most is not None
    several = whose.startswith("your")
    used = "an unknown number" if limit.used is None else f"{limit.used:,}"
    if resource == "jobs":
        return f"{whose}: {used} of {said(limit.most, resource)} at most"
    if resource in ("memory", "seconds") and limit.used is not None:
        used = said(limit.used, resource)
    return f"{whose} {'use' if several else 'uses'} {used} of {'their' if several else 'its'} {said(limit.most, resource, thing)}"


def said(number: int, resource: str, thing: str | None = None) -> str:
    """Return a number of something in words."""
    if thing:
        return count(number, thing)
    if resource.startswith("gres/gpu"):
        return gpus(number, [resource.removeprefix("gres/gpu:")] if ":" in resource else [])
    if resource == "memory":
        return memory_text(number)
    if resource == "seconds":
        return span(number)
    names = {"cpus": "CPU", "nodes": "node", "jobs": "job", "billing": "billing unit"}
    return count(number, names.get(resource, printable(resource)))


def account(case: Case) -> Told:
    """AccountNotAllowed, InvalidAccount: what the partitions take, and what the user has of it."""
    yield from _not_taken(case, "account")
    found = case.present.associations(case.job.user or "")
    mine = sorted({one.account for one in found[0]}) if found else []
    others = [name for name in mine if name != case.job.account and _taken(case, "account", name)]
    if others:
        yield Mend(f"charge another account of yours: {listed(others)}", case.change("Account", others[0]))
    else:
        yield Mend("ask the site's support for an account that is valid there")


def qos(case: Case) -> Told:
    """QOSNotAllowed, InvalidQOS: what the partitions take, and what the account may use."""
    yield from _not_taken(case, "qos")
    others = other_qos(case)
    if others:
        yield Mend(
            f"another QOS that your account may use there: {listed(others)}", case.change("QOS", others[0])
        )
    else:
        yield Mend("ask the site's support for a QOS that is valid there")


def other_qos(case: Case) -> list[str]:
    """Return the further QOS that the job's account may use in its partitions."""
    found = case.present.associations(case.job.user or "")
    mine = [one for one in (found[0] if found else ()) if one.account == case.job.account]
    legal = sorted({name for one in mine for name in one.qos})
    return [name for name in legal if name != case.job.qos and _taken(case, "qos", name)]


def barred(case: Case) -> Told:
    """Return what ``account`` and ``qos`` tell, where none of its partitions takes the job; nothing where one does."""
    for what, subject in (("account", account), ("qos", qos)):
        name = case.job.account if what == "account" else case.job.qos
        if name and case.partitions and not _taken(case, what, name):
            case.never = True
            word = "account" if what == "account" else "QOS"
            case.sentence = f"none of its partitions takes {word} {printable(name)} (any more)"
            yield from subject(case)


def _takes(rules: Partition, what: str, name: str) -> bool:
    return rules.takes_account(name) if what == "account" else rules.takes_qos(name)


def _taken(case: Case, what: str, name: str) -> bool:
    """Return True if one of its partitions takes a name."""
    return any(_takes(one.rules, what, name) for one in case.partitions)


def _not_taken(case: Case, what: str) -> Told:
    name = (case.job.account if what == "account" else case.job.qos) or "none"
    word = "account" if what == "account" else "QOS"
    for one in case.partitions:
        if _takes(one.rules, what, name):
            continue
        rules, partition = one.rules, one.name
        allowed, denied = (
            (rules.accounts, rules.denied_accounts) if what == "account" else (rules.qos, rules.denied_qos)
        )
        rule = f"takes {word} {listed(allowed)}, not" if allowed else f"does not take {word}"
        figures = {"partition": partition, "allowed": list(allowed), "denied": list(denied), what: name}
        yield Fact(what, f"partition {partition} {rule} {printable(name)}", figures)
