"""The answers of the queue and of accounting, joined: which of the two counts for a job, and what is doubtful."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import TAKEN_OFF, JobId

__all__ = ["merge", "without_rash_ends"]

_SAME_SUBMISSION = timedelta(seconds=60)
_FROM_ACCOUNTING = ("state_text", "elapsed", "start", "end", "exit_code", "signal", "node_list")
# Ends of one run of a job after which Slurm may let it run again; of a cancelled one, processes may still live.
_MAY_GO_ON = frozenset({JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.CANCELLED})
_MAY_GO_ON_FOR = timedelta(hours=1)


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
