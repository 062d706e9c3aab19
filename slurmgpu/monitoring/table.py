"""Statuses as lines for people: a plain table that loses nothing, and the words in its cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from slurmgpu.models.run import JobState, JobStatus, JobUse, LiveUse
from slurmgpu.monitoring.arrays import Line
from slurmgpu.monitoring.arrays import lines as lines_of
from slurmgpu.monitoring.reasons import reason
from slurmgpu.slurm.text import printable

__all__ = ["cells", "duration", "header", "plain", "table"]

_HEADER = ("JOB", "NAME", "STATE", "PARTITION", "GPUS", "NODES", "ELAPSED", "LIMIT", "WHEN", "EXIT")
_USE_HEADER = ("MAX RSS", "CPUS USED")
_GPU_HEADER = ("GPU MEM",)
_LAST = ("REASON",)  # the longest text last, where it disturbs no column


def shows_use(jobs: Iterable[JobStatus]) -> bool:
    """Whether what any of these jobs uses or used was asked for."""
    return any(job.live is not None or job.used is not None for job in jobs)


def shows_gpu_memory(jobs: Iterable[JobStatus]) -> bool:
    """Whether any of these jobs' GPU memory was measured: few sites do."""
    return any(job.used is not None and job.used.gpu_memory is not None for job in jobs)


def header(use: bool, gpu_memory: bool = False) -> tuple[str, ...]:
    """Return the names of the columns."""
    return _HEADER + (_USE_HEADER if use else ()) + (_GPU_HEADER if gpu_memory else ()) + _LAST


def cells(
    job: JobStatus, use: bool, now: datetime, tasks: str | None = None, *, gpu_memory: bool = False
) -> tuple[str, ...]:
    """Return a job's row at the moment `now`, as `header` names it; `-` where there is nothing to say.

    `tasks` says what the tasks of an array do, where one row stands for all of them.
    """
    row = (
        job.job_id,
        printable(job.name),
        job.state.value,
        job.partition,
        None if job.gpus is None else _gpus(job) + (" each" if tasks and job.gpus else ""),
        _nodes(job),
        duration(job.elapsed),
        "UNLIMITED" if job.limit == "UNLIMITED" else duration(job.limit),
        _when(job, now),
        _exit(job),
    )
    more: tuple[str | None, ...] = (_size(job, "max_rss"), _cpus(job)) if use else ()
    more += (_size(job, "gpu_memory"),) if gpu_memory else ()
    return tuple(text or "-" for text in (*row, *more, "; ".join(filter(None, (tasks, reason(job))))))


def table(
    jobs: Sequence[JobStatus], now: datetime, *, live: bool = False, each_task: bool = False
) -> tuple[list[tuple[str, ...]], list[Line]]:
    """Return the header and the rows, and what each row after the header stands for.

    An array is one row unless `each_task`. What jobs use has columns where it was asked for (`live`).
    """
    use, gpu_memory = live or shows_use(jobs), shows_gpu_memory(jobs)
    lines = lines_of(jobs, each_task=each_task)
    rows = (cells(line.job, use, now, line.tasks, gpu_memory=gpu_memory) for line in lines)
    return [header(use, gpu_memory), *rows], lines


def plain(jobs: Sequence[JobStatus], now: datetime, *, live: bool = False, each_task: bool = False) -> str:
    """Return aligned columns without colour; nothing is cut off."""
    rows, _ = table(jobs, now, live=live, each_task=each_task)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def duration(seconds: int | None) -> str | None:
    """Return seconds as `1-02:03:04` or `02:03:04`, as Slurm writes them."""
    if seconds is None:
        return None
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _gpus(job: JobStatus) -> str:
    types = ",".join(sorted(job.gpu_types))
    return f"{job.gpus} {types}" if types else str(job.gpus)


def _nodes(job: JobStatus) -> str | None:
    if job.nodes is None:
        return None
    return f"{job.nodes} {job.node_list}" if job.node_list else str(job.nodes)


def _when(job: JobStatus, now: datetime) -> str | None:
    if job.state.is_waiting:
        return f"starts {_clock(job.expected_start, now)}?" if job.expected_start else None
    if job.state.is_final:
        return f"ended {_clock(job.end, now)}" if job.end else None
    return f"since {_clock(job.start, now)}" if job.start else None


def _clock(moment: datetime, now: datetime) -> str:
    """The time in this machine's zone; the date is left out when it is today's."""
    local = moment.astimezone()
    return f"{local:%H:%M}" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d %H:%M}"


def _exit(job: JobStatus) -> str | None:
    """The exit code, as Slurm's `code:signal` where a signal is in it; 0 stands for success alone."""
    if not job.state.is_final or job.exit_code is None:
        return None
    if job.signal:
        return f"{job.exit_code}:{job.signal}"
    return str(job.exit_code) if job.exit_code or job.state is JobState.COMPLETED else None


def _use(job: JobStatus) -> LiveUse | JobUse | None:
    return job.live or job.used


def _size(job: JobStatus, field: str) -> str | None:
    size = getattr(_use(job), field, None)
    if size is None:
        return _not_measured(job)
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _cpus(job: JobStatus) -> str | None:
    use = _use(job)
    if use is None or use.average_cpus is None:
        return _not_measured(job)
    of = f" of {job.cpus}" if job.cpus else ""
    return f"{use.average_cpus:.1f}{of}"


def _not_measured(job: JobStatus) -> str | None:
    """What a job used that has ended is either known or not; a running one was not asked, or has yet to be seen."""
    return "n/a" if job.state.is_final else None
