"""Statuses as lines for people: a plain table that loses nothing, and the words in its cells."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.monitoring.arrays import lines as lines_of
from slurmgpu.monitoring.reasons import reason
from slurmgpu.slurm.text import printable

__all__ = ["cells", "duration", "header", "plain"]

_HEADER = ("JOB", "NAME", "STATE", "PARTITION", "GPUS", "NODES", "ELAPSED", "LIMIT", "WHEN", "EXIT")
_LIVE_HEADER = ("MAX RSS", "CPUS USED")
_LAST = ("REASON",)  # the longest text last, where it disturbs no column


def header(live: bool) -> tuple[str, ...]:
    """Return the names of the columns."""
    return _HEADER + (_LIVE_HEADER if live else ()) + _LAST


def cells(job: JobStatus, live: bool, now: datetime, tasks: str | None = None) -> tuple[str, ...]:
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
    use = (_memory(job), _cpus(job)) if live else ()
    return tuple(text or "-" for text in (*row, *use, "; ".join(filter(None, (tasks, reason(job))))))


def plain(jobs: Sequence[JobStatus], now: datetime, *, live: bool = False, each_task: bool = False) -> str:
    """Return aligned columns without colour; nothing is cut off. An array is one row unless `each_task`."""
    rows = (cells(line.job, live, now, line.tasks) for line in lines_of(jobs, each_task=each_task))
    lines = [header(live), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


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


def _memory(job: JobStatus) -> str | None:
    if job.live is None or job.live.max_rss is None:
        return None
    size = job.live.max_rss
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _cpus(job: JobStatus) -> str | None:
    if job.live is None or job.live.average_cpus is None:
        return None
    of = f" of {job.cpus}" if job.cpus else ""
    return f"{job.live.average_cpus:.1f}{of}"
