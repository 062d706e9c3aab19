"""The tasks of an array in one line: how many wait, run and ended, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from slurmgpu.models.job import Array
from slurmgpu.models.run import JobState, JobStatus, JobUse
from slurmgpu.slurm import JobId

__all__ = ["ALL", "Among", "Line", "apart", "known", "label", "lines", "only"]


T = TypeVar("T")

_WORDS = {
    JobState.RUNNING: "running",
    JobState.PENDING: "waiting",
    JobState.OUT_OF_MEMORY: "out of memory",
}
# What an array is called while its tasks differ: the first of these that one of them is in.
_ORDER = (
    "UNKNOWN RUNNING COMPLETING CONFIGURING SUSPENDED PENDING REQUEUED FAILED OUT_OF_MEMORY TIMEOUT NODE_FAIL BOOT_FAIL "
    "DEADLINE PREEMPTED CANCELLED REVOKED COMPLETED"
)
_FIRST = [JobState(word) for word in _ORDER.split()]
_MOST_NAMED = 8
_MOST_APART = 10_000
_LONGEST_LIST = 24


class Line(NamedTuple):
    """One line of a table: a job, or several tasks of an array taken together."""

    job: JobStatus
    """Of tasks: the state that matters most, the longest time, the first start, the last end."""
    tasks: str | None = None
    """How many tasks are in which state."""


class Among(NamedTuple):
    """Which of an array's tasks are among the jobs."""

    since: datetime | None = None
    """Those that ended before may be missing; None: none is for that."""
    chosen: bool = False
    """Whether some were chosen, by their state for example."""


ALL = Among()


def lines(jobs: Sequence[JobStatus], *, each_task: bool = False, among: Among = ALL) -> list[Line]:
    """Return the lines of a table, in the order of the jobs; an array is one line, where its first task was."""
    if each_task:
        return [Line(task) for job in jobs for task in apart(job)]
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
            result.append(Line(tasks[0]) if alone else _together(tasks, among))
    return result


def apart(job: JobStatus) -> list[JobStatus]:
    """Tasks that wait together, of which Slurm keeps one record, each by itself; of very many, and of other jobs, the record."""
    limit = (job.array_tasks or "").partition("%")[2].rstrip("]")
    tasks = _waiting(job.array_tasks)
    if tasks is None or tasks.tasks > _MOST_APART:
        return [job]
    return [
        job.model_copy(
            update={
                "job_id": f"{job.array_job_id}_{number}",
                "array_tasks": f"[{number}%{limit}]" if limit else str(number),
            }
        )
        for number in tasks.numbers
    ]


def only(job: JobStatus, named: Iterable[JobId]) -> list[JobStatus]:
    """Of tasks that wait together those that are named; the record itself where the array is, or another job."""
    named = list(named)
    number = JobId.parse(job.job_id)
    if _waiting(job.array_tasks) is None or number is None:
        return [job]
    if any(one.tasks is None or one.tasks == number.tasks for one in named if one.number == number.number):
        return [job]
    tasks = [(task, JobId.parse(task.job_id)) for task in apart(job)]
    return [task for task, own in tasks if own is not None and any(one.covers(own) for one in named)] or [job]


def _waiting(tasks: str | None) -> Array | None:
    """Return the indices in ``[0-4,7%2]``; None where there is one task, or none."""
    if tasks is None or tasks.isdigit():
        return None
    try:
        return Array.model_validate(tasks.strip("[]"))
    except ValidationError:
        return None


def label(job_id: str) -> str:
    """Return an id in a table: ``4_[1,3,5,...]`` where its list of tasks is long."""
    number, bracket, tasks = job_id.partition("_[")
    if len(tasks) <= _LONGEST_LIST:
        return job_id
    first = tasks[: _LONGEST_LIST - 4].rpartition(",")[0] or tasks[: _LONGEST_LIST - 4]
    return f"{number}{bracket}{first},...]"


def _together(tasks: list[JobStatus], among: Among) -> Line:
    first = min(tasks, key=lambda task: _FIRST.index(task.state))
    alike = [task for task in tasks if task.state is first.state]
    worst = max(tasks, key=lambda task: (task.signal or 0, task.exit_code or 0))
    whole = first.model_copy(
        update={
            "job_id": str(first.array_job_id),
            "node_list": None,
            "elapsed": max(known(t.elapsed for t in tasks), default=None),
            "start": min(known(t.start for t in tasks), default=None),
            "end": max(known(t.end for t in tasks), default=None),
            "expected_start": min(known(t.expected_start for t in alike), default=None),
            "exit_code": worst.exit_code,
            "signal": worst.signal,
            "used": _used(tasks),
            "progress": None,
            "sampled": None,
        }
    )
    return Line(whole, _summary(tasks, among))


def _used(tasks: list[JobStatus]) -> JobUse | None:
    """Return the most that any task used, and the CPUs of a task on average; None where no task's use was asked for."""
    measured = [(task.used, task.elapsed or 0) for task in tasks if task.used is not None]
    if not measured:
        return None
    times = [(use.cpu_seconds, elapsed) for use, elapsed in measured if use.cpu_seconds is not None]
    elapsed = sum(elapsed for _, elapsed in times)
    seconds = sum(seconds for seconds, _ in times) if times else None
    return JobUse(
        max_rss=max(known(use.max_rss for use, _ in measured), default=None),
        cpu_seconds=seconds,
        average_cpus=seconds / elapsed if seconds is not None and elapsed else None,
        gpu_memory=max(known(use.gpu_memory for use, _ in measured), default=None),
    )


def known(values: Iterable[T | None]) -> list[T]:
    """Return what Slurm said, without what it did not say."""
    return [value for value in values if value is not None]


def _summary(tasks: list[JobStatus], among: Among) -> str:
    """``4/9 tasks done, 2 failed (3, 7), 3 waiting``; of how many only where all of them are known."""
    counts: Counter[JobState] = Counter()
    for task in tasks:
        counts[task.state] += _count(task)
    done, total = counts[JobState.COMPLETED], counts.total()
    submitted = min(known(task.submit for task in tasks), default=None)
    since = among.since if submitted is None or (among.since and submitted < among.since) else None
    if not among.chosen and since is None:
        parts = [f"{done}/{total} task{'' if total == 1 else 's'} done"]
    else:
        parts = [f"{done} task{'' if done == 1 else 's'} done"] if done else []
    del counts[JobState.COMPLETED]
    for state in sorted(counts, key=_FIRST.index):
        word = _WORDS.get(state, state.value.lower())
        parts.append(f"{counts[state]} {word}{_which(tasks, state) if state.is_final else ''}")
    left_out = f"; without those that ended before {since.astimezone():%Y-%m-%d %H:%M}" if since else ""
    return ", ".join(parts) + left_out


def _which(tasks: list[JobStatus], state: JobState) -> str:
    """Return the numbers of the tasks in this state, as many as a line can hold."""
    numbers: list[str] = []
    for task in tasks:
        if task.state is state and len(numbers) <= _MOST_NAMED:
            waited = _waiting(task.array_tasks)
            numbers += (task.array_tasks or "?",) if waited is None else _short(waited)
    more = ", ..." if len(numbers) > _MOST_NAMED else ""
    return f" ({', '.join(numbers[:_MOST_NAMED])}{more})"


def _short(tasks: Array) -> list[str]:
    """Its indices, where they are few; else as the array is written, ``0-19``."""
    return (
        [str(number) for number in tasks.numbers] if tasks.tasks <= _MOST_NAMED else tasks.indices.split(",")
    )


def _count(task: JobStatus) -> int:
    """Return how many tasks a record stands for: those that wait together are one."""
    tasks = _waiting(task.array_tasks)
    return 1 if tasks is None else tasks.tasks
