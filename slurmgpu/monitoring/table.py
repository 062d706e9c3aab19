"""Statuses as lines for people: a plain table that loses nothing, and the words in its cells."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from slurmgpu.models.run import JobState, JobStatus

__all__ = ["cells", "duration", "header", "plain", "printable", "reason"]

_HEADER = ("JOB", "NAME", "STATE", "PARTITION", "GPUS", "NODES", "ELAPSED", "LIMIT", "WHEN", "EXIT")
_LIVE_HEADER = ("MAX RSS", "CPUS USED")
_LAST = ("REASON",)  # the longest text last, where it disturbs no column

# In a few words; a reason that is not here stands alone. What waits "for ever" needs the user.
_WAITING = {
    "Resources": "next, when nodes are free",
    "Priority": "others come first",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "waits for ever: the other job did not end as asked",
    "BeginTime": "not before the time asked for",
    "JobHeldUser": "held by you: scontrol release",
    "JobHeldAdmin": "held by the site",
    "JobArrayTaskLimit": "the array's own limit",
    "PartitionConfig": "waits for ever: more than the partition has",
    "PartitionTimeLimit": "waits for ever: longer than the partition allows",
    "PartitionNodeLimit": "waits for ever: more nodes than the partition allows",
    "ReqNodeNotAvail": "nodes asked for are down or reserved",
}
_ENDED = {
    "BadConstraints": "no node can ever run it",
    "NonZeroExitCode": "the command failed",
    "JobLaunchFailure": "could not start: the log's or the work folder may be missing",
    "TimeLimit": "ran into its time limit",
    "OutOfMemory": "used more memory than asked for",
}


STOPPED = 75
"""EX_TEMPFAIL of sysexits.h, with which a training of slurmgpu's ends that has stopped and saved everything."""


def header(live: bool) -> tuple[str, ...]:
    """Return the names of the columns."""
    return _HEADER + (_LIVE_HEADER if live else ()) + _LAST


def cells(job: JobStatus, live: bool, now: datetime) -> tuple[str, ...]:
    """Return a job's row at the moment `now`, as `header` names it; `-` where there is nothing to say."""
    row = (
        job.job_id,
        printable(job.name),
        job.state.value,
        job.partition,
        None if job.gpus is None else _gpus(job),
        _nodes(job),
        duration(job.elapsed),
        "UNLIMITED" if job.limit == "UNLIMITED" else duration(job.limit),
        _when(job, now),
        _exit(job),
    )
    use = (_memory(job), _cpus(job)) if live else ()
    return tuple(text or "-" for text in (*row, *use, reason(job)))


def plain(jobs: Sequence[JobStatus], now: datetime, *, live: bool = False) -> str:
    """Return aligned columns without colour; nothing is cut off."""
    lines = [header(live), *(cells(job, live, now) for job in jobs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def printable(text: str) -> str:
    """Return text with control characters spelled out: a job's name must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def reason(job: JobStatus) -> str | None:
    """Return Slurm's reason, with what it means where that is known."""
    if job.reason is None:
        return None
    # "ReqNodeNotAvail, UnavailableNodes:n[1-3]" carries more than the word.
    word = job.reason.strip("()").split(",")[0].strip()
    if not job.state.is_waiting and word in _WAITING:
        return None  # Why it once waited; Slurm does not clear it.
    meaning = _WAITING.get(word) or _ENDED.get(word)
    if word == "NonZeroExitCode" and job.exit_code == STOPPED:
        meaning = "stopped, and can go on when started again"
    return f"{printable(job.reason)}: {meaning}" if meaning else printable(job.reason)


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
