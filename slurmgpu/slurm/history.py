"""Every start of jobs with its steps and what accounting measured, by one sacct call.

A requeued job keeps its id, and its earlier starts are rows of their own, which sacct shows with ``--duplicates`` only
(sacct(1)); an id that is used again after some years is another job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Literal

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm.commands import Commands
from slurmgpu.slurm.sacct import (
    FIELDS,
    USE,
    AccountingAnswer,
    Step,
    absence,
    asking,
    highest_exit_code,
    in_tres,
    read_job,
    read_step,
    whose,
)
from slurmgpu.slurm.text import JobId, each_row, moment, size, unread, whole

__all__ = [
    "HISTORY",
    "Histories",
    "History",
    "Start",
    "histories_command",
    "parse_histories",
    "read_histories",
]


HISTORY = (*FIELDS, *USE, "ReqMem", "AveRSS", "MaxRSSNode", "ConsumedEnergyRaw", "TRESUsageInTot")
"""In every release from 20.11 to 26.05."""
# Slurm's words for "no value" in numbers (NO_VAL, INFINITE, and the same of 64 bits) come out of some releases as they are.
_NO_ENERGY = 1 << 32
_LARGEST_ENERGY = 1 << 60
# Between the end of a start and its return to the queue; slurmctld may have been down in between.
_GAP = timedelta(hours=1)
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Start:
    """One start of a job: its row, and those of its steps."""

    job: JobStatus
    steps: tuple[Step, ...] = ()
    memory: int | None = None
    """Memory given on all nodes together, bytes; of a job that waits, what it asks for."""
    memory_for: Literal["node", "cpu"] | None = None
    """What the memory was asked for, where the release says so (before 21.08)."""
    cpu_seconds: float | None = None
    """CPU time of all its steps; None where Slurm did not measure."""
    energy: int | None = None
    """Joules of its nodes; None where the site does not measure: Slurm then writes 0."""


@dataclass(frozen=True)
class History:
    """A job with all its starts, the first one first."""

    starts: tuple[Start, ...]

    @property
    def last(self) -> Start:
        """The start that counts: it ended the job, or runs, or waits."""
        return self.starts[-1]

    @property
    def job(self) -> JobStatus:
        """The job as it is now."""
        return self.starts[-1].job


@dataclass(frozen=True)
class Histories(AccountingAnswer):
    """What accounting knows of jobs and all their starts."""

    jobs: list[History] = field(default_factory=list)


def histories_command(
    *, user: str | None = None, ids: Sequence[int] = (), since: datetime | None = None
) -> list[str]:
    """Return the sacct command for all starts and steps of jobs by id, or of those of a user (None: all) since a moment."""
    return [*asking(HISTORY), "--duplicates", *whose(user, ids, since)]


def read_histories(
    slurm: Commands,
    *,
    user: str | None = None,
    ids: Sequence[int] = (),
    since: datetime | None = None,
    timeout: float = 300,
) -> Histories:
    """Ask accounting; a site without it, or one that does not answer, gives a note and no error.

    A week of a large site is many rows, so it may take `timeout` seconds.
    """
    answer = slurm.ask(histories_command(user=user, ids=ids, since=since), timeout=timeout)
    return absence(answer, Histories) or parse_histories(answer.stdout)


def parse_histories(text: str) -> Histories:
    """Read what `command` prints; rows that are none become notes."""
    bad: list[str] = []
    notes: list[str] = []
    by_job: dict[tuple[str | None, str], list[Start]] = {}
    for start in _starts(text, bad, notes):
        by_job.setdefault((start.job.cluster, start.job.job_id), []).append(start)
    notes += unread("sacct", bad)
    jobs = [history for starts in by_job.values() for history in _histories(starts)]
    return Histories(jobs, notes=notes)


def _starts(text: str, bad: list[str], notes: list[str]) -> Iterator[Start]:
    """Yield each start with the steps in the rows behind it."""
    record: dict[str, str] | None = None
    job_id: JobId | None = None
    steps: list[Step] = []
    for row in each_row(text, len(HISTORY), bad):
        found = dict(zip(HISTORY, row, strict=True))
        if "." in found["JobID"]:
            if record is not None and found["JobID"].partition(".")[0] == record["JobID"]:
                steps.append(read_step(found))
            continue
        if record is not None and job_id is not None:
            yield _start(record, job_id, steps)
        record, steps = found, []
        job_id = JobId.parse(found["JobID"])
        if job_id is None:
            notes.append(f"sacct: a row with the id {found['JobID']!r} was left out: that is not a job id")
    if record is not None and job_id is not None:
        yield _start(record, job_id, steps)


_PER = re.compile(r"[KMGTP]?([cn])\Z", re.ASCII)


def _start(record: dict[str, str], job_id: JobId, steps: list[Step]) -> Start:
    per = _PER.search(record["ReqMem"].strip())
    energy = whole(record["ConsumedEnergyRaw"])
    job = read_job(record, job_id)
    if job.derived_exit_code:
        job = job.model_copy(update={"derived_exit_code": highest_exit_code(job.derived_exit_code, steps)})
    return Start(
        _that_ran(job, record),
        tuple(steps),
        memory=size(in_tres(record["AllocTRES"], "mem")) or size(in_tres(record["ReqTRES"], "mem")) or None,
        memory_for=None if per is None else "cpu" if per[1] == "c" else "node",
        cpu_seconds=_cpu_seconds(steps),
        energy=energy
        if energy and energy < _LARGEST_ENERGY and energy >> 1 != (_NO_ENERGY >> 1) - 1
        else None,
    )


def _that_ran(job: JobStatus, record: dict[str, str]) -> JobStatus:
    """Return the row of a start that ended in a requeue: the job waits again, and this start held its nodes all the same."""
    elapsed, start = whole(record["ElapsedRaw"]), moment(record["Start"])
    if not job.state.is_waiting or job.end is None or start is None or not elapsed:
        return job
    return job.model_copy(update={"elapsed": elapsed, "start": start})


def _cpu_seconds(steps: list[Step]) -> float | None:
    """CPU time of the steps; of one that was killed Slurm has less than its samples say, or nothing."""
    found = [max(known) for step in steps if (known := _times(step))]
    return sum(found) if found else None


def _times(step: Step) -> list[float]:
    return [time for time in (step.cpu_seconds, step.sampled_cpu_seconds) if time is not None]


def _histories(starts: list[Start]) -> Iterator[History]:
    """Yield the jobs that one id stood for, each with its starts."""
    if len(starts) > 1:
        starts.sort(key=lambda one: one.job.submit or one.job.start or _LONG_AGO)
    group = starts[:1]
    for start in starts[1:]:
        if not _goes_on(group[-1].job, start.job):
            yield History(tuple(group))
            group = []
        group.append(start)
    yield History(tuple(group))


def _goes_on(before: JobStatus, after: JobStatus) -> bool:
    """Return True if a row is the next start of the job: a requeue sets the time of submission anew, at the end before it."""
    if before.user != after.user or before.state is JobState.COMPLETED:
        return False
    if before.end is None or after.submit is None:
        return before.submit == after.submit
    return before.submit == after.submit or abs(after.submit - before.end) <= _GAP
