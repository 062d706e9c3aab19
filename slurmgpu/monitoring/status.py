"""What became of jobs: one sacct call and one squeue call, side by side and merged; sstat only on request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, TypeVar

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus, JobUse, LiveUse, Run
from slurmgpu.monitoring.arrays import known
from slurmgpu.monitoring.exit_codes import with_whole_exit_code
from slurmgpu.monitoring.seen import with_seen
from slurmgpu.monitoring.select import Selection, job_of_record, run_of
from slurmgpu.monitoring.settling import note_jobs
from slurmgpu.slurm import TAKEN_OFF, Accounting, JobId, Slurm, Step, StepUse, cluster_name_here

__all__ = ["StatusReport", "merge", "status"]

A = TypeVar("A")
B = TypeVar("B")

DEFAULT_SINCE = timedelta(days=1)
# Of so many jobs, the newest, the use is asked for at once: a command line holds some 12,000 ids.
_MOST_ASKED = 1000


@dataclass(frozen=True)
class StatusReport:
    """Jobs as Slurm reports them at one moment."""

    cluster: str | None
    time: datetime
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


def status(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    live: bool = False,
    run_for: Callable[[JobStatus], Run | None] = run_of,
) -> StatusReport:
    """Ask Slurm about a user's jobs (None: everybody's), or about those selected.

    `since` (default: a day ago) bounds what accounting is asked for; jobs selected by id alone are found
    whatever their age. `run_for` finds the run of a job, where only that can tell its exit code.
    Raises SlurmUnreachable when neither the controller nor accounting answers.
    """
    now = datetime.now(timezone.utc)
    accounting, queue = _both(
        lambda: _accounting(slurm, user, selections, since or now - DEFAULT_SINCE),
        lambda: _queue(slurm, user),
    )
    jobs, doubts = merge(queue.jobs, accounting.jobs, user)
    if doubts:
        # What accounting calls unfinished may have been submitted since the queue was asked.
        queue = _queue(slurm, user)
        jobs, doubts = merge(queue.jobs, accounting.jobs, user)
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
    notes += [note for note, job in doubts if job in found] + not_found
    note_jobs(found, slurm.env)
    found = _with_dependencies(slurm, found)
    if (selections or live) and accounting.available:
        found = _with_use_of_ended(slurm, found)
    found = with_seen(found, ended=bool(selections) or live)
    found = [with_whole_exit_code(job, _run_for(selections, run_for)) for job in found]
    if live:
        found, live_notes = _with_live_use(slurm, found)
        notes += live_notes
    silence = no_answer.message if no_answer else accounting.notes[0] if accounting.silent else ""
    missing, unasked = ([], absent) if silence else (absent, [])
    shown = sorted(found, key=_order)
    return StatusReport(
        _cluster(slurm, jobs), now, shown, notes, missing, unasked, no_answer, silence if unasked else ""
    )


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


def _accounting(
    slurm: Slurm, user: str | None, selections: Sequence[Selection], since: datetime
) -> Accounting:
    ids = [s.id.number for s in selections if s.id]
    runs = [s.run for s in selections if s.run]
    try:
        if selections and len(ids) == len(selections):
            return slurm.accounting(ids=list(dict.fromkeys(ids)))
        return slurm.accounting(
            user=user,
            since=min([since, *(run.submitted_at - timedelta(minutes=5) for run in runs)]),
            submit_line=any(run.job_id is None for run in runs),
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


_FROM_ACCOUNTING = ("state_text", "elapsed", "start", "end", "exit_code", "signal", "node_list")


def _completed_by(queued: JobStatus, accounted: JobStatus | None) -> JobStatus:
    """The queue's record, with accounting's figures where both say that the job has ended, and how."""
    if accounted is None or not queued.state.is_final or accounted.state is not queued.state:
        return queued
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


def _with_dependencies(slurm: Slurm, jobs: list[JobStatus]) -> list[JobStatus]:
    waiting = [
        job.raw_id
        for job in jobs
        if job.state.is_waiting and job.raw_id is not None and (job.reason or "").startswith("Dependency")
    ]
    if not waiting:
        return jobs
    try:
        told = slurm.dependencies(waiting)
    except SlurmUnreachable:
        return jobs
    return [job.model_copy(update={"dependency": told.get(job.job_id)}) for job in jobs]


def _with_use_of_ended(slurm: Slurm, jobs: list[JobStatus]) -> list[JobStatus]:
    """What ended jobs used; where accounting has not heard of a job's steps, nothing is known."""
    ended = known(JobId.parse(job.job_id) for job in jobs if job.state.is_final and job.source != "none")
    numbers = sorted({job_id.number for job_id in ended})
    if not numbers:
        return jobs
    try:
        accounting = slurm.accounting(ids=numbers[-_MOST_ASKED:], use=True)
    except SlurmUnreachable:
        return jobs
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
