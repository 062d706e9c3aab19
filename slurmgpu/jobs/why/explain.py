"""Why one job waits, runs or has ended: what the table says, with the figures of this moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from slurmgpu.jobs.view import progress_text, reason
from slurmgpu.jobs.waits import NEVER, NEXT, each_waits, waits, word_of
from slurmgpu.jobs.why.answer import (
    Case,
    Fact,
    Mend,
    Verdict,
    Why,
    amount,
    clock,
    gibibytes,
    gpus,
    listed,
    span,
)
from slurmgpu.jobs.why.limits import barred
from slurmgpu.jobs.why.queue_position import ahead_of, remembered
from slurmgpu.jobs.why.room import ahead_text, room_facts, room_for
from slurmgpu.jobs.why.subjects import SUBJECTS
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, Present, QueuedJob

__all__ = ["explain"]


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
        text = f"since {clock(job.start, now)}, for {span((now - job.start).total_seconds())}"
        facts.append(Fact("started", text, {"start": job.start, "elapsed": job.elapsed}))
    if job.time_left is not None:
        end = now.timestamp() + job.time_left
        moment = datetime.fromtimestamp(end, now.tzinfo)
        text = f"until {clock(moment, now)} at the latest, in {span(job.time_left)}: its time limit"
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
            why.sentence = f"put back into the queue ({amount(job.restarts, 'time')} so far), where Slurm lets it wait a moment"
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
        what = gpus(asked.gpus, asked.gpu_types) if asked.gpus else amount(asked.cpus, "CPU")
        text = f"asks for {what} on {amount(asked.nodes, 'node')}"
        share = [gpus(each_gpus, asked.gpu_types)] if several and each_gpus else []
        share += [amount(each_cpus, "CPU")] if asked.gpus or several else []
        share += [gibibytes(each_memory)] if asked.memory else []
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
