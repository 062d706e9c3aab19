"""The limit that holds a job, and whether its partitions take its account and its QOS.

Slurm looks at accounts and QOS when a job is submitted, and later only now and then: rules that have changed since leave a
job with the reason that it had (24.11, 26.05), so that a job that waits for its turn is held against them, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.amounts import count, size_text, span, time_of_day
from slurmgpu.jobs.view import LIMIT
from slurmgpu.jobs.why.answer import Case, Fact, Findings, Mend, gpus, listed
from slurmgpu.models.cluster import Partition
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.models.run import JobStatus
    from slurmgpu.slurm import Book, Holder, QueuedJob

__all__ = ["account", "barred", "limit", "qos"]


class _Held(NamedTuple):
    """A limit that is in the job's way."""

    holder: Holder
    fact: Fact
    too_large: bool
    """True if the job alone is larger than the limit: nobody's end will let it start."""
    most: int
    resource: str
    """``cpus``, ``nodes``, ``memory`` (MiB), ``jobs``, ``seconds``, or Slurm's name of the TRES."""
    minutes: int | None = None
    """Of a budget in minutes of the resource: how many are left; None: it is none."""


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


_OF_A_QOS = (
    *(word for word in _OF_ONE_JOB if word.startswith("QOS")), "QOSMaxJobsPerUserLimit", "QOSGrpJobsLimit",
    "QOSGrpCPURunMinutesLimit", "QOSGrpCPUMinutesLimit", "QOSGrpGRESRunMinutes", "QOSGrpGRESMinutes", "QOSMinCpuNotSatisfied",
)  # fmt: skip
_OPTIONS = {"gpus": "--gpus", "cpus": "--cpus-per-task", "nodes": "--nodes", "memory": "--mem", "seconds": "--time"}  # fmt: skip
"""By which option less is asked for."""


def limit(case: Case) -> Findings:
    """Yield the limit that is reached, who uses it up, and what would fit; what is not known, where Slurm does not show it."""
    job, asked, present = case.job, case.asked, case.present
    user, account = job.user or "", job.account or ""
    own = next((one.rules.own_qos for one in case.partitions if one.rules.own_qos), None)
    book = present.book(user, account, tuple(dict.fromkeys(name for name in (job.qos, own) if name)))
    found = _limits_meant(case.word, job, asked, book, own) if book is not None else []
    if book is not None and not found and case.word.startswith("Assoc"):
        found = _limits_meant(case.word, job, asked, present.with_parents(book, user, account), own)
    if not found:
        why = printable(present.unknown.get("limits", "the limit is not among those that Slurm shows"))
        yield Fact(
            "limit", f"how much of the limit is used is not known: {why}", {"limit": None, "used": None}
        )
        return
    first = found[0]
    case.sentence = f"a limit leaves too little for it: {first.fact.text}"
    if first.too_large:
        case.sentence = f"it does not fit a limit even by itself: {first.fact.text}"
    if case.word.startswith("QOS") and not first.too_large and (others := _other_qos(case)):
        there = present.book(user, account, tuple(others))
        free = []  # those of which no limit would hold the job, as far as the book shows them
        for name in others:
            moved = job.model_copy(update={"qos": name})
            if there is not None and not any(
                True for word in _OF_A_QOS for _ in _holding(word, moved, asked, there, None)
            ):
                free.append(name)
        if free:
            text = f"use another QOS, whose limits leave room for it: {listed(free)}"
            yield Mend(text, case.change("QOS", free[0]))
    for one in found[:3]:
        yield one.fact
        if one.too_large:
            case.never = True
            yield from _fitting(case, one)
        else:
            yield from _first_to_end(case, one.holder)


def _fitting(case: Case, held: _Held) -> Findings:
    """Yield the request that fits a limit for which the job is too large by itself."""
    asks, most, resource, limit = held.fact.figures.get("asked"), held.most, held.resource, case.asked.limit
    option = _OPTIONS.get("gpus" if resource.startswith("gres/gpu") else resource)
    if held.minutes is not None:
        # What is left of a budget holds the job for so long; where nothing is left, no smaller job starts either.
        time = held.minutes * -(-limit // 60) // asks if limit and isinstance(asks, int) and asks else 0
        if time:
            text = f"ask for {span(time * 60)}: so long the budget lasts"
            yield Mend(text, case.change("TimeLimit", str(time)))
        else:
            yield Mend("only who gives out the budget can change this: ask for more of it")
    elif resource == "seconds":
        yield Mend(f"ask for {span(most)}", case.change("TimeLimit", f"{most // 60}"))
    elif option:
        least = "at least" if "wants" in held.fact.text else "at most"
        value = f"{most}M" if resource == "memory" else str(most)
        yield Mend(f"ask for {least} {_amount(most, resource)}", case.again(f"{option}={value}"))


def _first_to_end(case: Case, holder: Holder) -> Findings:
    """Yield, of the jobs that use up a limit, the one that ends first; those of accounts below it are not seen."""
    if case.present.hides("jobs") and "user" not in holder.kind:
        return

    def counts(job: QueuedJob) -> bool:
        if holder.kind.startswith("qos") and job.qos != holder.name:
            return False
        if holder.account and job.account != holder.account:
            return False
        return not holder.user or job.user == holder.user

    ending = [(one.end, one) for one in case.queue or () if not one.waits and one.end and counts(one)]
    if ending:
        end, first = min(ending, key=lambda one: (one[0], one[1].number))
        when = f"at {time_of_day(end, case.now)}, or earlier"
        text = f"of these, job {first.shown} ({printable(first.user or 'unknown')}) ends first: {when}"
        yield Fact("first to end", text, {"job_id": first.shown, "user": first.user, "at": end})


def _limits_meant(
    word: str, job: JobStatus, asked: QueuedJob, book: Book, partition_qos: str | None
) -> list[_Held]:
    """Return the limits that a reason can mean, the one that is used up first.

    ``partition_qos``: the QOS of the partition itself, whose limits count, too.
    """
    match = LIMIT.fullmatch(_OLD.get(word, word))
    if match is None:
        return []

    def room_left(one: _Held) -> float:
        used, asks = one.fact.figures.get("used"), one.fact.figures.get("asked")
        return one.most - (used if isinstance(used, int) else 0) - (asks if isinstance(asks, int) else 0)

    # Nearest to its end first: of several that may be meant, that is the one that holds.
    found = sorted(_holding(match, job, asked, book, partition_qos), key=room_left)
    # Behind the limit that Slurm names another may stand, for which the job is too large by itself.
    others = (one for other in _OF_ONE_JOB for one in _holding(other, job, asked, book, partition_qos))
    known = {one.fact.text for one in found}
    return [*found, *(one for one in others if one.too_large and one.fact.text not in known)]


def _holding(
    limit: re.Match[str] | str, job: JobStatus, asked: QueuedJob, book: Book, partition_qos: str | None
) -> Iterator[_Held]:
    """Yield the limits of this name that leave no room for the job."""
    match = LIMIT.fullmatch(limit) if isinstance(limit, str) else limit
    assert match is not None
    by_minutes, least = bool(match["minutes"]), match["kind"] == "Min"
    for holder, whose in _holders(match, job, book, partition_qos):
        for key, one in holder.limits.items():
            resource = _meant(match, key)
            if resource is None or one.most is None:
                continue
            most, used = one.most, one.used
            if resource == "seconds":  # the controller counts wall time in minutes
                most, used = most * 60, None if used is None else used * 60
            asks = _asked_of(resource, asked, per_node=match["per"] == "Node")
            if by_minutes and asks is not None:
                asks = None if asked.limit is None else asks * -(-asked.limit // 60)
            too_large = asks is not None and (asks < most if least else asks > most)
            # A limit with room for the job is not the one.
            if not too_large and used is not None and used + (asks or 1) <= most:
                continue
            of = {"cpus": "CPU", "nodes": "node", "memory": "MiB", "gres/gpu": "GPU"}.get(
                resource, printable(resource)
            )
            thing = f"{of}-minutes" if by_minutes else None
            if least:
                text = f"{whose} wants {_amount(most, resource)} at least"
            elif match["per"] in ("Job", "Node") or (resource == "seconds" and match["kind"] == "Max"):
                where = "on a node" if match["per"] == "Node" else "for a job"
                text = f"{whose} allows {_amount(most, resource)} {where}"
            else:
                text = _used(whose, used, most, resource, thing)
            if asks and resource != "jobs":
                text += (
                    f"; this job {'may take' if by_minutes else 'asks for'} {_amount(asks, resource, thing)}"
                )
            figures = {"whose": whose, "resource": resource, "limit": most, "used": used, "asked": asks}
            left = max(0, most - (used or 0)) if by_minutes else None
            yield _Held(holder, Fact("limit", text, figures), too_large, most, resource, left)


def _holders(
    match: re.Match[str], job: JobStatus, book: Book, partition_qos: str | None
) -> Iterator[tuple[Holder, str]]:
    if match["whose"] == "Assoc":  # the user's association, its account, and the accounts above that
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
            of = {
                "qos user": f"your jobs in QOS {name}",
                "qos account": f"account {job.account} in QOS {name}",
            }
            yield holder, of.get(kind, f"QOS {name}")


_SUFFIX = {"Job": "PJ", "Node": "PN", "User": "PU", "Account": "PA", "": "PJ"}


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


def _asked_of(resource: str, asked: QueuedJob, *, per_node: bool) -> int | None:
    """Return what the job would add, on a node or in all; None where that is not known."""
    gpus, cpus, memory = asked.per_node if per_node else (asked.gpus, asked.cpus, asked.memory)
    if resource == "gres/gpu":
        return gpus
    if resource.startswith("gres/gpu:"):
        return gpus if resource.removeprefix("gres/gpu:") in asked.gpu_types else 0
    known = {"cpus": cpus, "nodes": asked.nodes, "memory": memory, "seconds": asked.limit, "jobs": 1}
    return known.get(resource)


def _used(whose: str, used: int | None, most: int, resource: str, thing: str | None) -> str:
    """`account lab uses 30 of its 32 GPUs`."""
    shown = "an unknown number" if used is None else f"{used:,}"
    if resource == "jobs":
        return f"{whose}: {shown} of {_amount(most, resource)} at most"
    if resource in ("memory", "seconds") and used is not None:
        shown = _amount(used, resource)
    verb, its = ("use", "their") if whose.startswith("your") else ("uses", "its")
    return f"{whose} {verb} {shown} of {its} {_amount(most, resource, thing)}"


def _amount(number: int, resource: str, thing: str | None = None) -> str:
    """Return a number of something in words."""
    if thing:
        return count(number, thing)
    if resource.startswith("gres/gpu"):
        return gpus(number, [resource.removeprefix("gres/gpu:")] if ":" in resource else [])
    if resource == "memory":
        return size_text(number << 20)
    if resource == "seconds":
        return span(number)
    names = {"cpus": "CPU", "nodes": "node", "jobs": "job", "billing": "billing unit"}
    return count(number, names.get(resource, printable(resource)))


def account(case: Case) -> Findings:
    """AccountNotAllowed, InvalidAccount: what the partitions take, and what the user has of it."""
    yield from _not_taken(case, "account")
    found = case.present.associations(case.job.user or "")
    mine = sorted({one.account for one in found[0]}) if found else []
    others = [name for name in mine if name != case.job.account and _taken(case, "account", name)]
    if others:
        yield Mend(f"charge another account of yours: {listed(others)}", case.change("Account", others[0]))
    else:
        yield Mend("ask the site's support for an account that is valid there")


def qos(case: Case) -> Findings:
    """QOSNotAllowed, InvalidQOS: what the partitions take, and what the account may use."""
    yield from _not_taken(case, "qos")
    if others := _other_qos(case):
        text = f"another QOS that your account may use there: {listed(others)}"
        yield Mend(text, case.change("QOS", others[0]))
    else:
        yield Mend("ask the site's support for a QOS that is valid there")


def _other_qos(case: Case) -> list[str]:
    """Return the further QOS that the job's account may use in its partitions."""
    found = case.present.associations(case.job.user or "")
    mine = [one for one in (found[0] if found else ()) if one.account == case.job.account]
    legal = sorted({name for one in mine for name in one.qos})
    return [name for name in legal if name != case.job.qos and _taken(case, "qos", name)]


def barred(case: Case) -> Findings:
    """Yield what ``account`` and ``qos`` tell, where none of its partitions takes the job; nothing where one does."""
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


def _not_taken(case: Case, what: str) -> Findings:
    name = (case.job.account if what == "account" else case.job.qos) or "none"
    word = "account" if what == "account" else "QOS"
    for one in case.partitions:
        if _takes(one.rules, what, name):
            continue
        rules, partition = one.rules, one.name
        allowed, denied = rules.qos, rules.denied_qos
        if what == "account":
            allowed, denied = rules.accounts, rules.denied_accounts
        rule = f"takes {word} {listed(allowed)}, not" if allowed else f"does not take {word}"
        figures = {"partition": partition, "allowed": list(allowed), "denied": list(denied), what: name}
        yield Fact(what, f"partition {partition} {rule} {printable(name)}", figures)
