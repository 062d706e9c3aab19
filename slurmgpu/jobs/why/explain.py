"""Why a job waits: the sentence, the figures and the fixes for the subject of its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from slurmgpu.amounts import count, memory_text, span, time_of_day
from slurmgpu.jobs.view import progress_text, reason
from slurmgpu.jobs.waits import NEVER, NEXT, About, each_waits, waits, word_of
from slurmgpu.jobs.why import limits, sizes
from slurmgpu.jobs.why.answer import Case, Fact, Mend, Told, Verdict, Why, gpus, listed
from slurmgpu.jobs.why.limits import Held, barred, is_free, limit_facts, said
from slurmgpu.jobs.why.room import ahead_of, ahead_text, remembered, room_facts, room_for
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, Present, QueuedJob

__all__ = ["SUBJECTS", "explain"]


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
    """Return what there is room for, ``explain`` tells of every job."""
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


# Where these are the reason, what is free says nothing of when the job starts.
_NO_ROOM = frozenset({"held", "dependency", "account", "qos", "begin"})


def explain(job: JobStatus, present: Present, now: datetime, environ: Mapping[str, str]) -> Why:
    """Tell why a job waits, or what it does. ``environ`` says where estimates are remembered.

    Raises SlurmUnreachable where the controller does not answer.
    """
    if job.state.is_final:
        return Why(job, "ended", reason(job) or _STATES.get(job.state.value, job.state.value))
    if job.source == "none" or not job.state.is_waiting:
        return _at_work(job, now)
    return _Waiting(job, present, now).told(environ)


_STATES = {"COMPLETED": "completed", "FAILED": "failed"}


def _at_work(job: JobStatus, now: datetime) -> Why:
    if job.source == "none" or job.state.value == "UNKNOWN":
        return Why(job, "unknown", "Slurm does not know of such a job, or does not say how it is")
    doing = {
        "RUNNING": "runs", "CONFIGURING": "its nodes are being prepared", "COMPLETING": "is ending",
        "SUSPENDED": "is suspended: Slurm, or an administrator, has stopped it for a while",
    }.get(job.state.value, job.state.value.lower())  # fmt: skip
    facts = []
    if job.start:
        text = f"since {time_of_day(job.start, now)}, for {span((now - job.start).total_seconds())}"
        facts.append(Fact("started", text, {"start": job.start, "elapsed": job.elapsed}))
    if job.time_left is not None:
        end = now.timestamp() + job.time_left
        moment = datetime.fromtimestamp(end, now.tzinfo)
        text = f"until {time_of_day(moment, now)} at the latest, in {span(job.time_left)}: its time limit"
        facts.append(Fact("limit", text, {"end": moment, "seconds_left": job.time_left}))
    elif job.limit == "UNLIMITED":
        facts.append(Fact("limit", "without a time limit", {"end": None, "seconds_left": None}))
    if job.node_list:
        where = f"on {printable(job.node_list)}"
        what = f", with {gpus(job.gpus, sorted(job.gpu_types))}" if job.gpus else ""
        facts.append(Fact("nodes", where + what, {"nodes": job.node_list, "gpus": job.gpus}))
    if job.progress is not None:
        text = progress_text(job.progress, running=True)
        facts.append(Fact("progress", f"its training: {text}", job.progress.model_dump()))
    if job.sampled is not None and job.sampled.gpu_utilisation is not None:
        share = job.sampled.gpu_utilisation
        facts.append(Fact("gpu_use", f"its GPUs were in use {share:.0%} of the time", {"share": share}))
    return Why(job, "runs", doing, facts)


class _Waiting:
    def __init__(self, job: JobStatus, present: Present, now: datetime) -> None:
        self.job, self.present, self.now = job, present, now
        rows = present.asked(job.raw_id) if job.raw_id is not None else []
        found = [one for one in rows if one.shown == job.job_id] or [one for one in rows if one.waits] or rows
        self.asked = found[0] if found else None
        if self.asked is not None and self.asked.reason:
            # Newer than the queue as it was asked for all jobs, and there for jobs of others, too.
            self.job = job = job.model_copy(update={"reason": self.asked.reason})
        self.word = word_of(job.reason) or "None"

    def told(self, environ: Mapping[str, str]) -> Why:
        job, asked = self.job, self.asked
        known = waits(self.word, job)
        several = each_waits(job)
        meaning = several or (known.meaning if known else _unheard_of(job))
        why = Why(job, "waits", meaning.removeprefix(NEVER).replace("{id}", job.job_id.partition("_[")[0]))
        if asked is None or not asked.waits:
            if asked is not None:
                return Why(job, "runs", "it has started, or ended, this moment: look again")
            why.unknown = dict(self.present.unknown)
            return why
        about = known.about if known else "site"
        case = Case(job, asked, self.present, self.word, self.now)
        said = list(SUBJECTS[about](case))
        if about in ("room", "soon"):
            said = list(barred(case)) or said
        why.facts = [self._request(asked), *(one for one in said if isinstance(one, Fact))]
        why.mends = [one for one in said if isinstance(one, Mend)]
        why.sentence = (not several and case.sentence) or why.sentence
        doomed = case.never or bool(known and known.never)
        if about not in _NO_ROOM and (not doomed or about in ("size", "request")):
            why.facts += self._room(asked, case, about)
        if any(one.figures.get("ahead") for one in why.facts):
            # Slurm keeps the word of its last look at the job: others have come before it since, or from another partition.
            why.sentence = why.sentence.replace(NEXT, "waits for nodes to be free")
        why.verdict = self._verdict(doomed or case.never, about)
        if job.restarts and self.word == "BeginTime":
            why.sentence = f"put back into the queue ({count(job.restarts, 'time')} so far), where Slurm lets it wait a moment"
        if why.verdict == "waits":
            why.start = remembered(job, asked.start or job.expected_start, self.now, environ)
        why.unknown = dict(self.present.unknown)
        return why

    def _verdict(self, never: bool, about: str) -> Verdict:
        if never:
            return "never"
        return "held" if about == "held" else "waits"

    def _request(self, asked: Asked) -> Fact:
        each_gpus, each_cpus, each_memory = asked.per_node
        several = asked.nodes > 1
        what = gpus(asked.gpus, asked.gpu_types) if asked.gpus else count(asked.cpus, "CPU")
        text = f"asks for {what} on {count(asked.nodes, 'node')}"
        share = [gpus(each_gpus, asked.gpu_types)] if several and each_gpus else []
        share += [count(each_cpus, "CPU")] if asked.gpus or several else []
        share += [memory_text(each_memory)] if asked.memory else []
        if share:
            text += f" ({listed(share)}{' on each' if several else ''})"
        text += f", for {span(asked.limit)}" if asked.limit else ""
        text += f", in {listed(asked.partitions)}" if asked.partitions else ""
        figures = {
            "gpus": asked.gpus, "gpu_types": list(asked.gpu_types), "nodes": asked.nodes, "cpus": asked.cpus,
            "memory_mib": asked.memory, "seconds": asked.limit, "partitions": list(asked.partitions),
            "priority": asked.priority,
        }  # fmt: skip
        return Fact("request", text, figures)

    def _room(self, asked: Asked, case: Case, about: str) -> Iterator[Fact]:
        nodes, partitions = self.present.nodes, self.present.partitions
        if nodes is None or partitions is None:
            yield Fact("room", "what is free is not known", {"free": None})
            return
        queue = case.queue
        whole = asked.exclusive or any(one.rules.whole_nodes for one in case.partitions)
        room = room_for(asked, nodes, case.hosts, queue or (), whole_nodes=whole)
        yield from room_facts(asked, room, case, about)
        if queue is None:
            yield Fact("queue", "how many jobs are ahead of it is not known", {"ahead": None})
        else:
            yield from self._line(asked, case, queue)

    def _line(self, asked: Asked, case: Case, queue: list[QueuedJob]) -> Iterator[Fact]:
        there = {one.name: one for one in (self.present.partitions or {}).values()}
        found = ahead_of(asked, self.job.user, queue, there)
        if self.present.hides("jobs"):
            text = "how many jobs are ahead of it is not known: this site shows users only their own (PrivateData=jobs)"
            if found.mine:
                text += f"; of yours, {found.mine}"
            yield Fact("queue", text, {"ahead": None, "mine": found.mine, "gpus": None})
            return
        yield Fact("queue", ahead_text(found, asked), found.__dict__ | {"ahead": found.jobs})


def _unheard_of(job: JobStatus) -> str:
    return f"Slurm says {printable(job.reason)}" if job.reason else "Slurm gives no reason (yet)"
