"""What the queue and accounting say of the jobs that somebody asks about: one squeue and one sacct, side by side and joined."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.merging import merge, without_rash_ends
from slurmgpu.monitoring.select import Selection
from slurmgpu.slurm import Accounting, JobId, Slurm, even

__all__ = ["Asked", "Told", "told"]

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
