"""What the queue and accounting say of jobs, joined: which of the two counts, and what is doubtful.

What the queue and accounting say of the jobs that somebody asks about: one squeue and one sacct, side by side and joined.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.jobs.select import Selection
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import TAKEN_OFF, Accounting, JobId, Slurm, even

__all__ = ["Asked", "Told", "merge", "told", "without_rash_ends"]


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
    arrays: dict[tuple[str | None, int | None], list[str]] = {}
    components = set()
    for job in queued or []:
        key = _key(job, lone_cluster)
        merged[key] = _completed_by(job, by_key.get(key))
        waiting = arrays.setdefault((key[0], job.array_job_id), [])
        if job.state.is_waiting:
            waiting.append(job.job_id)
        if "+" in job.job_id:
            components.add((key[0], job.raw_id))
    notes: list[tuple[str, JobStatus]] = []
    for key, job in by_key.items():
        if key in merged:
            continue
        if job.array_job_id is None and job.job_id.isdigit() and (key[0], int(job.job_id)) in arrays:
            continue  # For a moment accounting has a row of the last task that does not yet say that it is one.
        if job.job_id.isdigit() and (key[0], int(job.job_id)) in components:
            continue  # Until a heterogeneous job starts, 26.05 has each component in accounting as a job of its own.
        waits_together = job.array_tasks is not None and not job.array_tasks.isdigit()
        if waits_together and not job.state.is_final and (key[0], job.array_job_id) in arrays:
            continue  # The queue already lists these tasks, in parts that accounting has not heard of yet.
        if not job.state.is_final and _is_among(job, arrays.get((key[0], job.array_job_id), ())):
            continue  # A task that was released, or requeued, is by itself in accounting, and squeue shows it with the others.
        put_back = job.state is JobState.REQUEUED and job.end is not None
        if queued is not None and put_back and user in (None, job.user):
            # Cancelled before it was back in the queue, a job has no further row (seen on 20.11, 22.05 and 26.05).
            job = job.model_copy(update={"state": JobState.CANCELLED})
        elif queued is not None and not job.state.is_final and user in (None, job.user):
            lost = job.model_copy(update={"state": JobState.UNKNOWN})
            said = job.state_text or "nothing"
            notes.append((f"job {job.job_id}: accounting says {said}, but the queue has no such job", lost))
            job = lost
        merged[key] = job
    return list(merged.values()), notes


def _key(job: JobStatus, lone_cluster: str | None) -> tuple[str | None, str]:
    return job.cluster or lone_cluster, job.job_id


def _is_among(task: JobStatus, waiting: Iterable[str]) -> bool:
    """Whether a task is one of those that wait together; squeue cuts a long list of these short."""
    one = JobId.parse(task.job_id)
    if one is None or not (one.tasks or "").isdigit():
        return False
    many = (JobId.parse(row) for row in waiting)
    return any(row is not None and (row.covers(one) or "..." in (row.tasks or "")) for row in many)


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


# Ends of one run of a job after which Slurm may let it run again; of a cancelled one, processes may still live.
_MAY_GO_ON = frozenset({JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.CANCELLED})
_MAY_GO_ON_FOR = timedelta(hours=1)


def without_rash_ends(
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


A = TypeVar("A")
B = TypeVar("B")


class Asked(NamedTuple):
    """What accounting and the queue are asked about."""

    user: str | None
    selections: Sequence[Selection]
    since: datetime
    use: bool


class Told(NamedTuple):
    """What they say, merged; each doubt is a note and the job that it is about."""

    jobs: list[JobStatus]
    doubts: list[tuple[str, JobStatus]]
    accounting: Accounting
    queue: _Queue


def told(slurm: Slurm, asked: Asked, now: datetime, *, sparing: bool) -> Told:
    """Ask both; ``sparing`` leaves accounting alone as long as the queue says that no job that is named has ended.

    That a job is not there is said only by answers that were asked for now.
    """
    answer = _told_once(slurm, asked, now, sparing)
    shelf = slurm.shelf
    gone = [one for one in asked.selections if not any(map(one.matches, answer.jobs))]
    if shelf is None or shelf.kept_only or not gone or not slurm.oldest():
        return answer
    # A job may have come since an answer that another process has asked for: that it is not there has to be so now.
    shelf.only_from_now()
    shelf.ages.clear()
    return _told_once(slurm, asked, now, sparing)


def _told_once(slurm: Slurm, asked: Asked, now: datetime, sparing: bool) -> Told:
    user = asked.user
    if sparing:
        queue = _queue(slurm, user)
        accounting = Accounting() if _live_alone(queue, asked.selections) else _accounting(slurm, asked)
    else:
        accounting, queue = _both(lambda: _accounting(slurm, asked), lambda: _queue(slurm, user))
        queue = _with_those_of_others(slurm, queue, asked, accounting.jobs)
    jobs, doubts = merge(queue.jobs, accounting.jobs, user)
    if not slurm.doubted.issuperset(job.job_id for _, job in doubts):
        # What accounting calls unfinished may have been submitted since the queue was asked.
        if slurm.shelf is not None:
            slurm.shelf.only_since("sacct")
        queue = _with_those_of_others(slurm, _queue(slurm, user), asked, accounting.jobs)
        jobs, doubts = merge(queue.jobs, accounting.jobs, user)
        slurm.doubted.update(job.job_id for _, job in doubts)
    if queue.no_answer is not None:
        jobs, doubts = without_rash_ends(jobs, now)
    return Told(jobs, doubts, accounting, queue)


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


def _with_those_of_others(
    slurm: Slurm, queue: _Queue, asked: Asked, accounted: Sequence[JobStatus]
) -> _Queue:
    """The queue with the jobs of others that are named by id: for one that waits, accounting knows no reason, or nothing yet."""
    if asked.user is None or queue.jobs is None:
        return queue
    known = {_number(job) for job in queue.jobs}
    known |= {_number(job) for job in accounted if job.user == asked.user or job.state.is_final}
    unknown = [one for one in asked.selections if one.id is not None and one.id.number not in known]
    if not unknown:
        return queue
    everybody = _queue(slurm, None)
    more = [job for job in everybody.jobs or () if any(one.matches(job) for one in unknown)]
    return queue._replace(jobs=[*queue.jobs, *more])


def _number(job: JobStatus) -> int | None:
    parsed = JobId.parse(job.job_id)
    return parsed.number if parsed else None


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


def _accounting(slurm: Slurm, asked: Asked) -> Accounting:
    selections = asked.selections
    ids = [s.id.number for s in selections if s.id]
    runs = [s.run for s in selections if s.run]
    try:
        if selections and len(ids) == len(selections):
            return slurm.accounting(ids=list(dict.fromkeys(ids)), use=asked.use)
        since = min([asked.since, *(run.submitted_at - timedelta(minutes=5) for run in runs)])
        return slurm.accounting(
            user=asked.user,
            since=even(since),
            submit_line=any(run.job_id is None for run in runs),
            use=asked.use,
        )
    except SlurmUnreachable as error:
        return Accounting(notes=[f"accounting is not available: {error.message}"], available=False)
