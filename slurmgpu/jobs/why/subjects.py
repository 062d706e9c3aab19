"""What the reasons are about, one function each: the figures, and what can be done."""

from __future__ import annotations

from collections.abc import Callable

from slurmgpu.amounts import count, span, time_of_day
from slurmgpu.jobs.waits import About
from slurmgpu.jobs.why import limits, sizes
from slurmgpu.jobs.why.answer import Case, Fact, Mend, Told, listed
from slurmgpu.jobs.why.limits import Held, is_free, limit_facts, said
from slurmgpu.printable import printable

__all__ = ["SUBJECTS"]


_LEAST_OPTION = {
    "gpus": "--gpus",
    "cpus": "--cpus-per-task",
    "nodes": "--nodes",
    "memory": "--mem",
    "seconds": "--time",
}


def _held(case: Case) -> Told:
    if case.word == "JobHeldAdmin":
        yield Mend("ask the site's support: only they can release it, and they know why they hold it")
        return
    if case.word == "JobHoldMaxRequeue":
        restarts = case.job.restarts
        times = "too often" if restarts is None else count(restarts, "time")
        yield Fact("restarts", f"it was started and put back {times}", {"restarts": restarts})
        yield Mend("find out first why its starts fail", f"slurmgpu logs {case.id}")
    yield Mend("release it", f"scontrol release {case.id}")


def _begin(case: Case) -> Told:
    eligible = case.asked.eligible
    if eligible is None:
        yield Fact("begin", "when it may begin is not known", {"begin": None})
        return
    wait = (eligible - case.now).total_seconds()
    when = f"may begin at {time_of_day(eligible, case.now)}"
    yield Fact("begin", f"{when}, in {span(wait)}" if wait > 0 else f"{when}: now", {"begin": eligible})
    if wait > 0 and not case.job.restarts:
        yield Mend("let it begin at once", case.change("StartTime", "now"))


def _dependency(case: Case) -> Told:
    if case.word == "DependencyNeverSatisfied":
        yield Mend("start it without the other", case.change("Dependency", ""))
        yield Mend("or take it out of the queue", f"slurmgpu cancel {case.id}")
        return
    text = case.asked.dependency or case.job.dependency
    yield Fact(
        "dependency",
        f"depends on {printable(text)}" if text else "on which job is not known",
        {"dependency": text},
    )


def _licenses(case: Case) -> Told:
    there = case.present.licenses
    for entry in (case.asked.licenses or "").split(","):
        name, _, number = entry.strip().partition(":")
        name = name.partition("@")[0]
        if not name:
            continue
        wanted = int(number) if number.isdecimal() and len(number) < 9 else 1
        found = (there or {}).get(name)
        if found is None or found.free is None:
            yield Fact("license", f"asks for {wanted} of license {printable(name)}; how many are free is not known",
                       {"license": name, "asked": wanted, "free": None, "total": None})  # fmt: skip
            continue
        text = f"asks for {wanted} of license {printable(name)}; {found.free} of {found.total} free now"
        yield Fact(
            "license", text, {"license": name, "asked": wanted, "free": found.free, "total": found.total}
        )
        if found.total is not None and wanted > found.total:
            case.never = True
            yield Mend(f"there are only {found.total}", case.change("Licenses", f"{name}:{found.total}"))


def _reservation(case: Case) -> Told:
    name = case.asked.reservation
    found = (case.present.reservations or {}).get(name or "")
    if found is None:
        gone = "is not there (any more), or not shown to you"
        yield Fact("reservation", f"reservation {printable(name or 'unknown')} {gone}", {"reservation": name})
        yield Mend("run it outside of any reservation", case.change("ReservationName", ""))
        return
    figures = {"reservation": name, "begins": found.start, "ends": found.end}
    if found.end and found.end <= case.now:
        case.never = True
        yield Fact("reservation", f"reservation {printable(found.name)} has ended", figures)
        yield Mend("run it outside of any reservation", case.change("ReservationName", ""))
    elif found.start and found.start > case.now:
        wait = span((found.start - case.now).total_seconds())
        text = (
            f"reservation {printable(found.name)} begins at {time_of_day(found.start, case.now)}, in {wait}"
        )
        yield Fact("reservation", text, figures)
    else:
        text = f"reservation {printable(found.name)} is open; its nodes are taken, or too few for this job"
        yield Fact("reservation", text, figures)


def _array(case: Case) -> Told:
    tasks = case.job.array_tasks or ""
    limit = tasks.partition("%")[2].rstrip("]")
    if limit:
        yield Fact(
            "array",
            f"the array runs {limit} at a time (%{limit})",
            {"limit": int(limit) if limit.isdecimal() else None},
        )
    number = case.job.array_job_id
    if number is not None:
        yield Mend(
            "raise the array's own limit",
            f"scontrol update JobId={number} ArrayTaskThrottle=N  # 0: no limit",
        )


def _limit(case: Case) -> Told:
    job, asked = case.job, case.asked
    own = next((one.rules.own_qos for one in case.partitions if one.rules.own_qos), None)
    qos = tuple(dict.fromkeys(name for name in (job.qos, own) if name))
    book = case.present.book(job.user or "", job.account or "", qos)
    found = limit_facts(case.word, job, asked, book, own) if book is not None else []
    if book is not None and not found and case.word.startswith("Assoc"):
        book = case.present.with_parents(book, job.user or "", job.account or "")
        found = limit_facts(case.word, job, asked, book, own)
    if not found:
        why = case.present.unknown.get("limits", "the limit is not among those that Slurm shows")
        yield Fact(
            "limit",
            f"how much of the limit is used is not known: {printable(why)}",
            {"limit": None, "used": None},
        )
        return
    case.sentence = found[0].sentence
    if case.word.startswith("QOS") and not found[0].too_large:
        others = limits.other_qos(case)
        there = case.present.book(job.user or "", job.account or "", tuple(others)) if others else None
        free = [name for name in others if there is not None and is_free(name, job, asked, there)]
        if free:
            yield Mend(
                f"use another QOS, whose limits leave room for it: {listed(free)}",
                case.change("QOS", free[0]),
            )
    for one in found[:3]:
        yield one.fact
        if not one.too_large:
            yield from _first_to_end(case, one)
        if not one.too_large:
            continue
        case.never = True
        option = "--gpus" if one.resource.startswith("gres/gpu") else _LEAST_OPTION.get(one.resource)
        asks = one.fact.figures.get("asked")
        if one.minutes is not None:
            # What is left of a budget holds the job for so long; where nothing is left, no smaller job starts either.
            time = (
                one.minutes * -(-asked.limit // 60) // asks
                if asked.limit and isinstance(asks, int) and asks
                else 0
            )
            if time:
                yield Mend(
                    f"ask for {span(time * 60)}: so long the budget lasts",
                    case.change("TimeLimit", str(time)),
                )
            else:
                yield Mend("only who gives out the budget can change this: ask for more of it")
        elif one.resource == "seconds":
            yield Mend(f"ask for {span(one.most)}", case.change("TimeLimit", f"{one.most // 60}"))
        elif option:
            least = "at least" if "wants" in one.fact.text else "at most"
            value = f"{one.most}M" if one.resource == "memory" else str(one.most)
            yield Mend(f"ask for {least} {said(one.most, one.resource)}", case.again(f"{option}={value}"))


def _first_to_end(case: Case, held: Held) -> Told:
    """Of the jobs that use up a limit, the one that ends first."""
    if case.present.hides("jobs") and "user" not in held.holder.kind:
        return
    ending = [(one.end, one) for one in case.queue or () if not one.waits and one.end and held.counts(one)]
    if ending:
        end, first = min(ending, key=lambda one: (one[0], one[1].number))
        whose = printable(first.user or "unknown")
        text = (
            f"of these, job {first.shown} ({whose}) ends first: at {time_of_day(end, case.now)}, or earlier"
        )
        yield Fact("first to end", text, {"job_id": first.shown, "user": first.user, "at": end})


def _soon(_: Case) -> Told:
    yield Mend("nothing: look again in a minute")


def _site(_: Case) -> Told:
    yield Mend("only the site can change this: ask its support if it lasts")


def _room(case: Case) -> Told:
    """What there is room for, ``explain`` tells of every job."""
    yield Mend(
        "see what would start sooner: fewer GPUs, less time, another partition",
        f"slurmgpu why {case.id} --shapes",
    )


SUBJECTS: dict[About, Callable[[Case], Told]] = {
    "account": limits.account, "array": _array, "begin": _begin, "dependency": _dependency, "held": _held,
    "licenses": _licenses, "limit": _limit, "nodes": sizes.nodes, "partition": sizes.partition, "qos": limits.qos,
    "request": sizes.request, "reservation": _reservation, "room": _room, "site": _site, "size": sizes.size,
    "soon": _soon, "time": sizes.time,
}  # fmt: skip
