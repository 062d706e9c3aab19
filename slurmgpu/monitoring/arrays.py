"""The tasks of an array in one line: how many wait, run and ended, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError

from slurmgpu.models.job import Array
from slurmgpu.models.run import JobState, JobStatus, JobUse

__all__ = ["Line", "lines"]

_WORDS = {
    JobState.COMPLETED: "done",
    JobState.RUNNING: "running",
    JobState.PENDING: "waiting",
    JobState.OUT_OF_MEMORY: "out of memory",
}
# What an array is called while its tasks differ: the first of these that one of them is in.
_FIRST = (
    JobState.UNKNOWN,
    JobState.RUNNING,
    JobState.COMPLETING,
    JobState.CONFIGURING,
    JobState.SUSPENDED,
    JobState.PENDING,
    JobState.REQUEUED,
    JobState.FAILED,
    JobState.OUT_OF_MEMORY,
    JobState.TIMEOUT,
    JobState.NODE_FAIL,
    JobState.BOOT_FAIL,
    JobState.DEADLINE,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.REVOKED,
    JobState.COMPLETED,
)
_MOST_NAMED = 8


class Line(NamedTuple):
    """One line of a table: a job, or several tasks of an array taken together."""

    job: JobStatus
    """Of tasks: the state that matters most, the longest time, the first start, the last end."""
    tasks: str | None = None
    """How many tasks are in which state."""


def lines(jobs: Sequence[JobStatus], *, each_task: bool = False) -> list[Line]:
    """The lines of a table, in the order of the jobs; an array is one line, where its first task was."""
    if each_task:
        return [Line(job) for job in jobs]
    # squeue names no cluster where there is one, and sacct does; tasks that have left the queue are of the same array.
    clusters = {job.cluster for job in jobs if job.cluster}
    lone = next(iter(clusters)) if len(clusters) == 1 else None
    arrays: dict[tuple[str | None, int], list[JobStatus]] = {}
    for job in jobs:
        if job.array_job_id is not None:
            arrays.setdefault((job.cluster or lone, job.array_job_id), []).append(job)
    result = []
    for job in jobs:
        array = job.array_job_id
        tasks = [job] if array is None else arrays.pop((job.cluster or lone, array), None)
        if tasks is not None:
            alone = len(tasks) == 1 and _count(tasks[0]) == 1
            result.append(Line(tasks[0]) if alone else _together(tasks))
    return result


def _together(tasks: list[JobStatus]) -> Line:
    order = {state: place for place, state in enumerate(_FIRST)}
    first = min(tasks, key=lambda task: order[task.state])
    alike = [task for task in tasks if task.state is first.state]
    worst = max(tasks, key=lambda task: (task.signal or 0, task.exit_code or 0))
    whole = first.model_copy(
        update={
            "job_id": str(first.array_job_id),
            "node_list": None,
            "elapsed": max((t.elapsed for t in tasks if t.elapsed is not None), default=None),
            "start": _extreme([t.start for t in tasks], min),
            "end": _extreme([t.end for t in tasks], max),
            "expected_start": _extreme([t.expected_start for t in alike], min),
            "exit_code": worst.exit_code,
            "signal": worst.signal,
            "used": _used(tasks),
        }
    )
    return Line(whole, _summary(tasks))


def _used(tasks: list[JobStatus]) -> JobUse | None:
    """The most that any task used, and the CPUs of a task on average; None where no task's use was asked for."""
    measured = [(task.used, task.elapsed or 0) for task in tasks if task.used is not None]
    if not measured:
        return None
    times = [(use.cpu_seconds, elapsed) for use, elapsed in measured if use.cpu_seconds is not None]
    elapsed = sum(elapsed for _, elapsed in times)
    seconds = sum(seconds for seconds, _ in times) if times else None
    return JobUse(
        max_rss=max((use.max_rss for use, _ in measured if use.max_rss is not None), default=None),
        cpu_seconds=seconds,
        average_cpus=seconds / elapsed if seconds is not None and elapsed else None,
        gpu_memory=max((use.gpu_memory for use, _ in measured if use.gpu_memory is not None), default=None),
    )


def _extreme(moments: list[datetime | None], choose: Callable[[list[datetime]], datetime]) -> datetime | None:
    known = [moment for moment in moments if moment is not None]
    return choose(known) if known else None


def _summary(tasks: list[JobStatus]) -> str:
    """``9 tasks: 4 done, 2 failed (3, 7), 3 waiting``."""
    counts: dict[JobState, int] = {}
    for task in tasks:
        counts[task.state] = counts.get(task.state, 0) + _count(task)
    parts = []
    for state in (JobState.COMPLETED, *(state for state in _FIRST if state is not JobState.COMPLETED)):
        if state in counts:
            word = _WORDS.get(state, state.value.lower())
            bad = state.is_final and state is not JobState.COMPLETED
            parts.append(f"{counts[state]} {word}{_which(tasks, state) if bad else ''}")
    total = sum(counts.values())
    return f"{total} task{'' if total == 1 else 's'}: {', '.join(parts)}"


def _which(tasks: list[JobStatus], state: JobState) -> str:
    """The numbers of the tasks in this state, as many as a line can hold."""
    numbers = [task.array_tasks or "?" for task in tasks if task.state is state]
    more = ", ..." if len(numbers) > _MOST_NAMED else ""
    return f" ({', '.join(numbers[:_MOST_NAMED])}{more})"


def _count(task: JobStatus) -> int:
    """How many tasks a record stands for: those that wait together are one."""
    try:
        return Array.model_validate((task.array_tasks or "0").strip("[]")).tasks
    except ValidationError:
        return 1
