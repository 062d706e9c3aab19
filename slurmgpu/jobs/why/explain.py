"""Why a job waits: the sentence, the figures and the fixes for the subject of its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from slurmgpu.amounts import count, size_text, span, time_of_day
from slurmgpu.jobs.view import NEVER, NEXT, About, each_waits, progress_text, reason, waits, word_of
from slurmgpu.jobs.why import limits
from slurmgpu.jobs.why.answer import Case, Fact, Findings, Mend, Why, gpus, listed, remembered
from slurmgpu.jobs.why.room import ahead_of, elsewhere, queue_fact, room_facts, room_for
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Present, QueuedJob

__all__ = ["SUBJECTS", "explain"]


def _held(case: Case) -> Findings:
    if case.word == "JobHeldAdmin":
        yield Mend("ask the site's support: only they can release it, and they know why they hold it")
        return
    if case.word == "JobHoldMaxRequeue":
        restarts = case.job.restarts
        times = "too often" if restarts is None else count(restarts, "time")
        yield Fact("restarts", f"it was started and put back {times}", {"restarts": restarts})
        yield Mend("find out first why its starts fail", f"slurmgpu logs {case.id}")
    yield Mend("release it", f"scontrol release {case.id}")


def _begin(case: Case) -> Findings:
    eligible = case.asked.eligible
    if eligible is None:
        yield Fact("begin", "when it may begin is not known", {"begin": None})
        return
    wait = (eligible - case.now).total_seconds()
    when = f"may begin at {time_of_day(eligible, case.now)}"
    yield Fact("begin", f"{when}, in {span(wait)}" if wait > 0 else f"{when}: now", {"begin": eligible})
    if wait > 0 and not case.job.restarts:
        yield Mend("let it begin at once", case.change("StartTime", "now"))


def _dependency(case: Case) -> Findings:
    if case.word == "DependencyNeverSatisfied":
        yield Mend("start it without the other", case.change("Dependency", ""))
        yield Mend("or take it out of the queue", f"slurmgpu cancel {case.id}")
        return
    text = case.asked.dependency or case.job.dependency
    words = f"depends on {printable(text)}" if text else "on which job is not known"
    yield Fact("dependency", words, {"dependency": text})


def _licenses(case: Case) -> Findings:
    for entry in (case.asked.licenses or "").split(","):
        name, _, number = entry.strip().partition(":")
        name = name.partition("@")[0]
        if not name:
            continue
        wanted = int(number) if number.isdecimal() and len(number) < 9 else 1
        found = (case.present.licenses or {}).get(name)
        text = f"asks for {wanted} of license {printable(name)}; "
        if found is None or found.free is None:
            figures = {"license": name, "asked": wanted, "free": None, "total": None}
            yield Fact("license", f"{text}how many are free is not known", figures)
            continue
        figures = {"license": name, "asked": wanted, "free": found.free, "total": found.total}
        yield Fact("license", f"{text}{found.free} of {found.total} free now", figures)
        if found.total is not None and wanted > found.total:
            case.never = True
            yield Mend(f"there are only {found.total}", case.change("Licenses", f"{name}:{found.total}"))


def _reservation(case: Case) -> Findings:
    name = case.asked.reservation
    found = (case.present.reservations or {}).get(name or "")
    outside = Mend("run it outside of any reservation", case.change("ReservationName", ""))
    if found is None:
        gone = "is not there (any more), or not shown to you"
        yield Fact("reservation", f"reservation {printable(name or 'unknown')} {gone}", {"reservation": name})
        yield outside
        return
    text = "is open; its nodes are taken, or too few for this job"
    ended = bool(found.end and found.end <= case.now)
    if ended:
        text = "has ended"
    elif found.start and found.start > case.now:
        wait = span((found.start - case.now).total_seconds())
        text = f"begins at {time_of_day(found.start, case.now)}, in {wait}"
    figures = {"reservation": name, "begins": found.start, "ends": found.end}
    yield Fact("reservation", f"reservation {printable(found.name)} {text}", figures)
    if ended:
        case.never = True
        yield outside


def _array(case: Case) -> Findings:
    limit = (case.job.array_tasks or "").partition("%")[2].rstrip("]")
    if limit:
        figures = {"limit": int(limit) if limit.isdecimal() else None}
        yield Fact("array", f"the array runs {limit} at a time (%{limit})", figures)
    number = case.job.array_job_id
    if number is not None:
        command = f"scontrol update JobId={number} ArrayTaskThrottle=N  # 0: no limit"
        yield Mend("raise the array's own limit", command)


def _partition(case: Case) -> Findings:
    """PartitionDown, PartitionInactive: which, and where else the job could go."""
    for one in case.partitions:
        if one.state != "UP":
            yield Fact("partition", f"partition {one.name} is {one.state}: it starts no jobs until the site opens it",
                       {"partition": one.name, "state": one.state})  # fmt: skip
    others = [one.name for one in elsewhere(case.job, case.asked, case.present)]
    if others:
        text = f"or move it to a partition that is open: {listed(others)}"
        yield Mend(text, case.change("Partition", others[0]))


def _time(case: Case) -> Findings:
    """PartitionTimeLimit: how long it may be, and where longer."""
    limit = case.asked.limit
    limits = [(one.rules.limits.max_time, one) for one in case.partitions]
    for most, one in limits:
        if most is None or most.seconds is None:
            continue
        asks = "no limit" if limit is None else span(limit)
        yield Fact("time", f"asks for {asks}; partition {one.name} allows {span(most.seconds)}",
                   {"partition": one.name, "asked": limit, "limit": most.seconds})  # fmt: skip
        yield Mend("ask for as long as the partition allows", case.change("TimeLimit", str(most)))
    longer = [one.name for one in elsewhere(case.job, case.asked, case.present)]
    if longer:
        text = f"or move it to a partition that allows it: {listed(longer)}"
        yield Mend(text, case.change("Partition", longer[0]))


def _size(case: Case) -> Findings:
    """More, or less, than the partition allows a job."""
    asked = case.asked
    for one in case.partitions:
        limits = one.rules.limits
        there = len(one.hosts)
        most = there if limits.max_nodes is None else min(limits.max_nodes, there)
        if asked.nodes > most:
            what = f"has {count(most, 'node')}" if most == there else f"allows {count(most, 'node')} a job"
            yield Fact("nodes", f"asks for {count(asked.nodes, 'node')}; partition {one.name} {what}",
                       {"partition": one.name, "asked": asked.nodes, "limit": most})  # fmt: skip
            yield Mend("ask for fewer nodes", case.change("NumNodes", f"{most}-{most}"))
        if limits.min_nodes is not None and asked.nodes < limits.min_nodes:
            yield Fact("nodes", f"asks for {count(asked.nodes, 'node')}; partition {one.name} wants {limits.min_nodes} at least",
                       {"partition": one.name, "asked": asked.nodes, "least": limits.min_nodes})  # fmt: skip
            yield Mend(
                "ask for more nodes", case.change("NumNodes", f"{limits.min_nodes}-{limits.min_nodes}")
            )
        cpus = limits.max_cpus_per_node
        if cpus is not None and asked.per_node[1] > cpus:
            yield Fact("cpus", f"asks for {count(asked.per_node[1], 'CPU')} on a node; partition {one.name} allows {cpus}",
                       {"partition": one.name, "asked": asked.per_node[1], "limit": cpus})  # fmt: skip
        memory = limits.max_memory
        if memory is not None and asked.per_node[2] > memory.mib:
            yield Fact("memory", f"asks for {size_text(asked.per_node[2] << 20)} on a node; partition {one.name} allows "
                       f"{size_text(memory.mib << 20)}",
                       {"partition": one.name, "asked": asked.per_node[2], "limit": memory.mib})  # fmt: skip
            yield Mend("ask for less memory", case.change("MinMemoryNode", str(memory.mib)))
    yield Mend("or cancel it, and submit it in a shape that fits", case.again("--nodes=N"))


def _request(case: Case) -> Findings:
    """BadConstraints: nothing that the partition has is what the job asks for; the room says for want of what."""
    if case.asked.features:
        have = sorted({name for node in case.present.nodes or () for name in node.features})
        yield Fact("features", f"asks for {printable(case.asked.features)}; nodes have {listed(have, 8) or 'no features'}",
                   {"asked": case.asked.features, "there": have})  # fmt: skip
        yield Mend("drop the constraint", case.change("Features", ""))
    yield Mend("see what there is", "slurmgpu cluster gpus")


def _nodes(case: Case) -> Findings:
    """ReqNodeNotAvail: nodes that it names, or all that it could use, are down, drained or reserved."""
    asked = case.asked
    there = {one.name: one for one in case.present.nodes or ()}
    for name in asked.wanted_nodes[:8]:
        node = there.get(name)
        if node is not None and node.away:
            state = "kept for another job" if node.away == "planned" else node.away
            yield Fact("node", f"it asks for node {name}, which is {state} ({printable(node.state)})",
                       {"node": name, "state": node.state})  # fmt: skip
    # Where too few of its nodes are up, a shorter job waits as long.
    up = sum(1 for name in case.hosts if name in there and there[name].away in ("", "planned"))
    coming = [
        (one.start, one.end, one)
        for one in (case.present.reservations or {}).values()
        if one.start
        and one.end
        and one.end > case.now
        and any(one.hosts & mine.hosts for mine in case.partitions)
    ]
    for start, end, one in sorted(coming, key=lambda each: each[0])[:2]:
        kind, wide = "maintenance" if one.maintenance else "reservation", count(len(one.hosts), "node")
        when = f"from {time_of_day(start, case.now)} to {time_of_day(end, case.now)}"
        figures = {"reservation": one.name, "begins": start, "ends": end}
        yield Fact("reservation", f"{kind} {printable(one.name)} takes {wide} {when}", figures)
        left = (start - case.now).total_seconds()
        if left > 60 and up >= asked.nodes and (asked.limit is None or asked.limit > left):
            minutes = int(left // 60) - 1
            text = f"a job that ends before it may start now: {span(minutes * 60)}"
            yield Mend(text, case.change("TimeLimit", str(minutes)))
    if asked.wanted_nodes:
        yield Mend("let Slurm choose the nodes", case.change("ReqNodeList", ""))


def _room(case: Case) -> Findings:
    """Yield a further question alone: what there is room for, ``explain`` tells of every job."""
    text = "see what would start sooner: fewer GPUs, less time, another partition"
    yield Mend(text, f"slurmgpu why {case.id} --shapes")


SUBJECTS: dict[About, Callable[[Case], Findings]] = {
    "account": limits.account, "array": _array, "begin": _begin, "dependency": _dependency, "held": _held,
    "licenses": _licenses, "limit": limits.limit, "nodes": _nodes, "partition": _partition, "qos": limits.qos,
    "request": _request, "reservation": _reservation, "room": _room, "size": _size, "time": _time,
    "soon": lambda _: iter((Mend("nothing: look again in a minute"),)),
    "site": lambda _: iter((Mend("only the site can change this: ask its support if it lasts"),)),
}  # fmt: skip


# Where these are the reason, what is free says nothing of when the job starts.
_NO_ROOM = frozenset({"held", "dependency", "account", "qos", "begin"})


def explain(job: JobStatus, present: Present, now: datetime, environ: Mapping[str, str]) -> Why:
    """Tell why a job waits, or what it does. ``environ`` says where estimates are remembered.

    Raises SlurmUnreachable where the controller does not answer.
    """
    if job.state.is_final:
        plainly = {"COMPLETED": "completed", "FAILED": "failed"}
        return Why(job, "ended", reason(job) or plainly.get(job.state.value, job.state.value))
    if job.source == "none" or not job.state.is_waiting:
        return _at_work(job, now)
    rows = present.request_of(job.raw_id) if job.raw_id is not None else []
    found = [one for one in rows if one.shown == job.job_id] or [one for one in rows if one.waits] or rows
    asked = found[0] if found else None
    if asked is not None and asked.reason:
        # Newer than the queue as it was asked for all jobs, and there for jobs of others, too.
        job = job.model_copy(update={"reason": asked.reason})
    word = word_of(job.reason) or "None"
    known, several = waits(word, job), each_waits(job)
    unheard_of = f"Slurm says {printable(job.reason)}" if job.reason else "Slurm gives no reason (yet)"
    meaning = several or (known.meaning if known else unheard_of)
    why = Why(job, "waits", meaning.removeprefix(NEVER).replace("{id}", job.job_id.partition("_[")[0]))
    if asked is None:
        why.unknown = dict(present.unknown)
        return why
    if not asked.waits:
        return Why(job, "runs", "it has started, or ended, this moment: look again")
    about = known.about if known else "site"
    case = Case(job, asked, present, word, now)
    found_there = list(SUBJECTS[about](case))
    if about in ("room", "soon"):
        found_there = list(limits.barred(case)) or found_there
    why.facts = [_request_fact(asked), *(one for one in found_there if isinstance(one, Fact))]
    why.mends = [one for one in found_there if isinstance(one, Mend)]
    why.sentence = (not several and case.sentence) or why.sentence
    never = case.never or bool(known and known.never)
    if about not in _NO_ROOM and (not never or about in ("size", "request")):
        why.facts += _room_and_queue(case, about)
    if any(one.figures.get("ahead") for one in why.facts):
        # Slurm keeps the word of its last look at the job: others have come before it since, or from another partition.
        why.sentence = why.sentence.replace(NEXT, "waits for nodes to be free")
    why.verdict = "never" if never or case.never else "held" if about == "held" else "waits"
    if job.restarts and word == "BeginTime":
        why.sentence = f"put back into the queue ({count(job.restarts, 'time')} so far), where Slurm lets it wait a moment"
    if why.verdict == "waits":
        why.start = remembered(job, asked.start or job.expected_start, now, environ)
    why.unknown = dict(present.unknown)
    return why


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
        moment = datetime.fromtimestamp(now.timestamp() + job.time_left, now.tzinfo)
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


def _request_fact(asked: QueuedJob) -> Fact:
    each_gpus, each_cpus, each_memory = asked.per_node
    several = asked.nodes > 1
    what = gpus(asked.gpus, asked.gpu_types) if asked.gpus else count(asked.cpus, "CPU")
    text = f"asks for {what} on {count(asked.nodes, 'node')}"
    share = [gpus(each_gpus, asked.gpu_types)] if several and each_gpus else []
    share += [count(each_cpus, "CPU")] if asked.gpus or several else []
    share += [size_text(each_memory << 20)] if asked.memory else []
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


def _room_and_queue(case: Case, about: str) -> Iterator[Fact]:
    asked, present = case.asked, case.present
    if present.nodes is None or present.partitions is None:
        yield Fact("room", "what is free is not known", {"free": None})
        return
    queue = case.queue
    whole = asked.exclusive or any(one.rules.whole_nodes for one in case.partitions)
    room = room_for(asked, present.nodes, case.hosts, queue or (), whole_nodes=whole)
    yield from room_facts(asked, room, case, about)
    if queue is None:
        yield Fact("queue", "how many jobs are ahead of it is not known", {"ahead": None})
        return
    found = ahead_of(asked, case.job.user, queue, present.partitions)
    if not present.hides("jobs"):
        yield queue_fact(found, asked)
        return
    text = (
        "how many jobs are ahead of it is not known: this site shows users only their own (PrivateData=jobs)"
    )
    text += f"; of yours, {found.mine}" if found.mine else ""
    yield Fact("queue", text, {"ahead": None, "mine": found.mine, "gpus": None})
