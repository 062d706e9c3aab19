"""What became of jobs: one sacct call and one squeue call, side by side and merged; sstat only on request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Literal, NamedTuple, TypeVar

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus, JobUse, LiveUse, Run
from slurmgpu.monitoring.arrays import known
from slurmgpu.monitoring.cause_files import with_cause
from slurmgpu.monitoring.exit_codes import with_whole_exit_code
from slurmgpu.monitoring.seen import with_seen
from slurmgpu.monitoring.select import Selection, job_of_record, run_of
from slurmgpu.monitoring.settling import note_jobs
from slurmgpu.slurm import TAKEN_OFF, Accounting, JobId, Slurm, Step, StepUse, cluster_name_here

__all__ = ["Detail", "StatusReport", "last_known", "merge", "status"]

A = TypeVar("A")
B = TypeVar("B")

DEFAULT_SINCE = timedelta(days=1)
# Accounting is asked from a full ten minutes on, so that processes that ask one after the other ask the same.
_EVEN = 600

Detail = Literal["usual", "use", "sparing"]
"""``use``: with what ended jobs used, which ``usual`` has for jobs that are named. ``sparing``: accounting is left alone as
long as the queue says of all jobs that are named that they have not ended."""
# Each is a file to be opened.
_MOST_CAUSES = 200


@dataclass(frozen=True)
class StatusReport:
    """Jobs as Slurm reports them at one moment."""

    cluster: str | None
    time: datetime
    """When Slurm was asked; of several answers, the oldest."""
    jobs: list[JobStatus]
    notes: list[str]
    """What the reader should know of the answer: what could not be asked, read or found."""
    missing: list[str] = field(default_factory=list)
    """The JOB words that lead to no job that Slurm knows, though it was asked."""
    unasked: list[str] = field(default_factory=list)
    """The JOB words of which it is not known whether there is such a job: queue or accounting did not answer."""
    no_answer: SlurmUnreachable | None = None
    """Why the queue could not be asked."""
    silence: str = ""
    """What did not answer, where that leaves words unasked."""
    age: float = 0.0
    """Seconds since then: another process of the user's may have asked."""


def status(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    live: bool = False,
    detail: Detail = "usual",
    run_for: Callable[[JobStatus], Run | None] = run_of,
) -> StatusReport:
    """Ask Slurm about a user's jobs (None: everybody's), or about those selected: one squeue and one sacct.

    `since` (default: a day ago) bounds what accounting is asked for; jobs selected by id alone are found
    whatever their age. `run_for` finds the run of a job, where only that can tell its exit code.
    Raises SlurmUnreachable when neither the controller nor accounting answers.
    """
    first = len(slurm.shelf.ages) if slurm.shelf else 0
    now = datetime.now(timezone.utc)
    with_use = bool(selections) or live or detail == "use"
    asked = _Asked(user, selections, since or now - DEFAULT_SINCE, with_use)
    jobs, doubts, accounting, queue = _told(slurm, asked, now, sparing=detail == "sparing")
    notes = [*accounting.notes, *queue.notes]
    no_answer = queue.no_answer
    if no_answer is not None:
        if not accounting.available:
            raise no_answer
        notes.append(f"{no_answer.message}  What follows comes from accounting, and may be out of date.")
    if since is not None:
        jobs = [job for job in jobs if _counts(job, since, selections)]
    found, not_found, absent = (
        _selected(jobs, selections, no_answer is None, not accounting.silent)
        if selections
        else (jobs, [], [])
    )
    notes += not_found
    if doubts:
        shown = {id(job) for job in found}
        notes += [note for note, job in doubts if id(job) in shown]
    note_jobs(found, slurm.env)
    if asked.use and accounting.available:
        found = _with_use_of_ended(accounting, found)
    found = with_seen(found, ended=asked.use)
    found = _as_runs_tell(found, _run_for(selections, run_for))
    if live:
        found, live_notes = _with_live_use(slurm, found)
        notes += live_notes
    silence = no_answer.message if no_answer else accounting.notes[0] if accounting.silent else ""
    missing, unasked = ([], absent) if silence else (absent, [])
    age = slurm.oldest(first)
    return StatusReport(
        cluster=_cluster(slurm, jobs),
        time=now - timedelta(seconds=age),
        jobs=sorted(found, key=_order),
        notes=notes,
        missing=missing,
        unasked=unasked,
        no_answer=no_answer,
        silence=silence if unasked else "",
        age=age,
    )


def last_known(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    detail: Detail = "usual",
) -> StatusReport | None:
    """What Slurm said when this was asked last on this machine, without asking; None where it never was.

    For people to look at while Slurm is silent: what has become of the jobs since, nobody knows.
    """
    if slurm.shelf is None:
        return None
    kept = Slurm(slurm.run, slurm.env, shelf=replace(slurm.shelf, kept_only=True, ages=[], heard={}))
    try:
        return status(kept, user=user, selections=selections, since=since, detail=detail)
    except (SlurmUnreachable, SlurmRefused):
        return None


class _Asked(NamedTuple):
    """What accounting and the queue are asked about."""

    user: str | None
    selections: Sequence[Selection]
    since: datetime
    use: bool


class _Told(NamedTuple):
    """What they say, merged; each doubt is a note and the job that it is about."""

    jobs: list[JobStatus]
    doubts: list[tuple[str, JobStatus]]
    accounting: Accounting
    queue: _Queue


def _told(slurm: Slurm, asked: _Asked, now: datetime, *, sparing: bool) -> _Told:
    told = _told_once(slurm, asked, now, sparing)
    shelf = slurm.shelf
    gone = [one for one in asked.selections if not any(map(one.matches, told.jobs))]
    if shelf is None or shelf.kept_only or not gone or not slurm.oldest():
        return told
    # A job may have come since an answer that another process has asked for: that it is not there has to be so now.
    shelf.only_from_now()
    shelf.ages.clear()
    return _told_once(slurm, asked, now, sparing)


def _told_once(slurm: Slurm, asked: _Asked, now: datetime, sparing: bool) -> _Told:
    user = asked.user
    if sparing:
        queue = _queue(slurm, user)
        accounting = Accounting() if _live_alone(queue, asked.selections) else _accounting(slurm, asked)
    else:
        accounting, queue = _both(lambda: _accounting(slurm, asked), lambda: _queue(slurm, user))
    jobs, doubts = merge(queue.jobs, accounting.jobs, user)
    if not slurm.doubted.issuperset(job.job_id for _, job in doubts):
        # What accounting calls unfinished may have been submitted since the queue was asked.
        if slurm.shelf is not None:
            slurm.shelf.only_since("sacct")
        queue = _queue(slurm, user)
        jobs, doubts = merge(queue.jobs, accounting.jobs, user)
        slurm.doubted.update(job.job_id for _, job in doubts)
    if queue.no_answer is not None:
        jobs, doubts = _without_rash_ends(jobs, now)
    return _Told(jobs, doubts, accounting, queue)


# Ends of one run of a job after which Slurm may let it run again; of a cancelled one, processes may still live.
_MAY_GO_ON = frozenset({JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.CANCELLED})
_MAY_GO_ON_FOR = timedelta(hours=1)


def _without_rash_ends(
    jobs: list[JobStatus], now: datetime
) -> tuple[list[JobStatus], list[tuple[str, JobStatus]]]:
    """The jobs without ends that accounting alone tells, and that may be none: the queue, which would know, is silent."""
    found, doubts = [], []
    for job in jobs:
        recent = job.end is None or job.end > now - _MAY_GO_ON_FOR
        if job.state in _MAY_GO_ON and recent:
            said = f"accounting says {job.state_text or job.state.value}, and the queue, which knows whether it goes on"
            job = job.model_copy(update={"state": JobState.UNKNOWN, "exit_code": None, "signal": None})
            doubts.append((f"job {job.job_id}: {said}, does not answer", job))
        found.append(job)
    return found, doubts


def _live_alone(queue: _Queue, selections: Sequence[Selection]) -> bool:
    """Whether the queue tells all that there is to know of the jobs named: each is there, and has not ended.

    Of an array it may have forgotten tasks.
    """
    if queue.jobs is None or not selections:
        return False
    found = [[job for job in queue.jobs if one.matches(job)] for one in selections]
    return all(found) and not any(
        job.state.is_final or job.array_job_id is not None for jobs in found for job in jobs
    )


def _as_runs_tell(jobs: list[JobStatus], run_for: Callable[[JobStatus], Run | None]) -> list[JobStatus]:
    """Jobs with what their scripts left in their run directories: the whole exit code, and of the newest the cause."""
    jobs = [with_whole_exit_code(job, run_for) for job in jobs]
    failed = sorted(
        (job.raw_id for job in jobs if job.state.is_final and job.raw_id is not None), reverse=True
    )
    newest = set(failed[:_MOST_CAUSES])
    return [with_cause(job, run_for) if job.raw_id in newest else job for job in jobs]


def _run_for(
    selections: Sequence[Selection], otherwise: Callable[[JobStatus], Run | None]
) -> Callable[[JobStatus], Run | None]:
    def find(job: JobStatus) -> Run | None:
        named = (selection.run for selection in selections if selection.run and selection.matches(job))
        return next(named, None) or otherwise(job)

    return find


class _Queue(NamedTuple):
    """What the queue says; without jobs, why it does not."""

    jobs: list[JobStatus] | None
    notes: list[str]
    no_answer: SlurmUnreachable | None = None


def _queue(slurm: Slurm, user: str | None) -> _Queue:
    try:
        return _Queue(*slurm.queue(user))
    except SlurmUnreachable as error:
        return _Queue(None, [], error)


def _both(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Two questions side by side: where Slurm is slow, a person waits once. What one of them raises is raised."""
    answers: list[A] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(one())
        except BaseException as error:
            errors.append(error)

    # A daemon: Ctrl-C does not wait for its answer.
    beside = threading.Thread(target=ask, daemon=True)
    beside.start()
    second = other()
    beside.join()
    if errors:
        raise errors[0]
    return answers[0], second


def _counts(job: JobStatus, since: datetime, selections: Sequence[Selection]) -> bool:
    """Whether a job has not ended before a moment, or is named by id: the queue remembers jobs for some minutes."""
    named = any(selection.name is None and selection.matches(job) for selection in selections)
    return named or not job.state.is_final or job.end is None or job.end >= since


def _accounting(slurm: Slurm, asked: _Asked) -> Accounting:
    selections = asked.selections
    ids = [s.id.number for s in selections if s.id]
    runs = [s.run for s in selections if s.run]
    try:
        if selections and len(ids) == len(selections):
            return slurm.accounting(ids=list(dict.fromkeys(ids)), use=asked.use)
        since = min([asked.since, *(run.submitted_at - timedelta(minutes=5) for run in runs)])
        return slurm.accounting(
            user=asked.user,
            since=since - timedelta(seconds=since.timestamp() % _EVEN),
            submit_line=any(run.job_id is None for run in runs),
            use=asked.use,
        )
    except SlurmUnreachable as error:
        return Accounting(notes=[f"accounting is not available: {error.message}"], available=False)


def merge(
    queued: list[JobStatus] | None, accounted: list[JobStatus], user: str | None
) -> tuple[list[JobStatus], list[tuple[str, JobStatus]]]:
    """Join what the queue and accounting say; returns jobs, and notes with the job each is about.

    `queued` is None when the queue could not be asked; `user` is whose jobs it was asked for (None:
    everybody's). The queue's word counts for a job that it lists: accounting lags at the start, and at the
    end it says CANCELLED while processes still run.
    """
    lone_cluster = next((job.cluster for job in accounted if job.cluster), None)
    by_key = {_key(job, lone_cluster): job for job in accounted}
    merged: dict[tuple[str | None, str], JobStatus] = {}
    arrays = set()
    for job in queued or []:
        key = _key(job, lone_cluster)
        merged[key] = _completed_by(job, by_key.get(key))
        arrays.add((key[0], job.array_job_id))
    notes: list[tuple[str, JobStatus]] = []
    for key, job in by_key.items():
        if key in merged:
            continue
        if job.array_job_id is None and job.job_id.isdigit() and (key[0], int(job.job_id)) in arrays:
            continue  # For a moment accounting has a row of the last task that does not yet say that it is one.
        waits_together = job.array_tasks is not None and not job.array_tasks.isdigit()
        if waits_together and not job.state.is_final and (key[0], job.array_job_id) in arrays:
            continue  # The queue already lists these tasks, in parts that accounting has not heard of yet.
        if queued is not None and not job.state.is_final and user in (None, job.user):
            lost = job.model_copy(update={"state": JobState.UNKNOWN})
            said = job.state_text or "nothing"
            notes.append((f"job {job.job_id}: accounting says {said}, but the queue has no such job", lost))
            job = lost
        merged[key] = job
    return list(merged.values()), notes


def _key(job: JobStatus, lone_cluster: str | None) -> tuple[str | None, str]:
    return job.cluster or lone_cluster, job.job_id


_SAME_SUBMISSION = timedelta(seconds=60)
_FROM_ACCOUNTING = ("state_text", "elapsed", "start", "end", "exit_code", "signal", "node_list")


def _completed_by(queued: JobStatus, accounted: JobStatus | None) -> JobStatus:
    """The queue's record, with accounting's figures where both say that the job has ended, and how."""
    if accounted is None or not queued.state.is_final or accounted.state is not queued.state:
        return queued
    if queued.submit and accounted.submit and accounted.submit < queued.submit - _SAME_SUBMISSION:
        return queued  # an earlier job of this id, or an earlier run of this one: accounting lags
    told = {name: getattr(accounted, name) for name in _FROM_ACCOUNTING}
    update = {name: value for name, value in told.items() if value is not None} | {"source": "squeue+sacct"}
    if (queued.exit_code or 0) - TAKEN_OFF == accounted.exit_code:
        update["exit_code"] = queued.exit_code
    if queued.exit_code is None:
        update["exit_code_cut"] = accounted.exit_code_cut
    return queued.model_copy(update=update)


def _selected(
    jobs: list[JobStatus], selections: Sequence[Selection], queue_told: bool, accounting_told: bool
) -> tuple[list[JobStatus], list[str], list[str]]:
    """The jobs that the selections mean, notes on those that lead to none, and their words."""
    found = [job for job in jobs if any(selection.matches(job) for selection in selections)]
    notes, missing = [], []
    for selection in selections:
        if any(selection.matches(job) for job in found):
            continue
        missing.append(selection.text)
        told = f"job {selection.text}: neither the queue nor accounting knows it"
        if not queue_told:
            told = f"job {selection.text}: accounting does not know it, and the queue could not be asked: it may be there"
        elif not accounting_told:
            told = f"job {selection.text}: the queue does not list it, and accounting could not be asked: it may have ended"
        elif selection.name is not None:
            told = f"there is no job named {selection.name!r} in the queue or in recent accounting"
        notes.append(told)
        if selection.name is None:
            found.append(_missing(selection))
    return found, notes, missing


def _missing(selection: Selection) -> JobStatus:
    """The record of a job that Slurm does not know: never a success, never a failure."""
    run = selection.run
    if run is None:
        return JobStatus(job_id=selection.text, state=JobState.UNKNOWN, source="none")
    told = {"cluster": run.cluster, "submit": run.submitted_at, "script": run.script_path}
    return job_of_record(run).model_copy(update=told)


def _with_use_of_ended(accounting: Accounting, jobs: list[JobStatus]) -> list[JobStatus]:
    """What ended jobs used; where accounting has not heard of a job's steps, nothing is known."""
    derived = {job.job_id: job.derived_exit_code for job in accounting.jobs}
    steps: dict[str, list[Step]] = {}
    for step in accounting.steps:
        steps.setdefault(step.job_id, []).append(step)
    return [
        job.model_copy(
            update={
                "used": _used(job, steps[job.job_id]),
                "derived_exit_code": derived.get(job.job_id) or _highest(steps[job.job_id]),
            }
        )
        if job.state.is_final and job.job_id in steps
        else job
        for job in jobs
    ]


def _highest(steps: list[Step]) -> int | None:
    """The highest exit code of a job's steps: of a step that ends after its batch script, the job's row may say 0."""
    codes = [
        128 + step.signal if step.signal else step.exit_code or 0 for step in steps if step.step.isdecimal()
    ]
    return max(codes, default=None)


def _used(job: JobStatus, steps: list[Step]) -> JobUse:
    times = known(step.cpu_seconds for step in steps)
    return JobUse(
        max_rss=max(known(step.max_rss for step in steps), default=None),
        cpu_seconds=sum(times) if times else None,
        average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
        gpu_memory=max(known(step.gpu_memory for step in steps), default=None),
    )


def _with_live_use(slurm: Slurm, jobs: list[JobStatus]) -> tuple[list[JobStatus], list[str]]:
    running = [job.raw_id for job in jobs if job.state is JobState.RUNNING and job.raw_id is not None]
    try:
        steps, notes = slurm.live_use(running)
    except SlurmUnreachable as error:
        return jobs, [error.message]
    return [_with_use(job, [s for s in steps if s.job_id == job.raw_id]) for job in jobs], notes


def _with_use(job: JobStatus, steps: list[StepUse]) -> JobStatus:
    if not steps:
        return job
    times = [s.tasks * s.average_cpu for s in steps if s.tasks is not None and s.average_cpu is not None]
    use = LiveUse(
        max_rss=max(known(s.max_rss for s in steps), default=None),
        cpu_seconds=sum(times) if times else None,
        average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
    )
    return job.model_copy(update={"live": use})


def _cluster(slurm: Slurm, jobs: list[JobStatus]) -> str | None:
    names = sorted({job.cluster for job in jobs if job.cluster})
    return ",".join(names) if names else cluster_name_here(slurm.env)


def _order(job: JobStatus) -> tuple[bool, int, int, str]:
    """Unfinished jobs first, each kind by id."""
    job_id = JobId.parse(job.job_id)
    number = job_id.number if job_id else 0
    task = int(job_id.tasks) if job_id and job_id.tasks and job_id.tasks.isdigit() else 1 << 62
    return job.state.is_final, number, task, job.job_id
