"""The logs of jobs, and which of their lines are wanted: those of a rank, since a moment, or that a pattern finds."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.jobs.log_files import Log, logs_of, tasks_of
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import Selection, is_of_this_cluster, job_of_record
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.slurm import JobId, Slurm

__all__ = ["LineFilter", "Wanted", "find_logs", "rank_of", "time_of"]


def find_logs(
    slurm: Slurm,
    selections: Sequence[Selection],
    user: str | None,
    run_for: Callable[[JobStatus], Run | None],
    *,
    earlier: bool = True,
) -> list[Log]:
    """Return the logs of the jobs that some words mean; those that a run directory, or its record of a
    job id, leads to are found without Slurm.

    ``run_for`` finds the run of a job. With ``earlier`` a run directory's earlier jobs come first, oldest first.

    Raises SlurmUnreachable when a word is not a run directory and nothing answers; SlurmGpuError for an unknown job.
    """
    found: list[Log] = []
    for selection in selections:
        run = selection.run or _recorded(slurm, selection, run_for)
        here = _here(run, selection.job_id) if run is not None else []
        if run is not None and here:
            found += [*(_of_earlier(selection.run) if selection.run and earlier else []), *here]
            continue
        jobs, no_answer = _asked(slurm, user, selection)
        logs = [log for job in jobs if job.source != "none" for log in _logs(selection, job, run_for)]
        if not logs:
            logs = [log for job in jobs for log in _of_record(job, run_for)]
        if no_answer is not None:  # what accounting says of a job that waits may be old
            said = "the queue does not answer, and accounting says: "
            logs = [log._replace(why=said + log.why) if log.why else log for log in logs]
        older = _of_earlier(selection.run) if selection.run is not None else []
        there = older or any(log.path and log.path.exists() for log in logs)
        if run is not None and not there and not (selection.job_id and selection.job_id.tasks):
            logs = _left_behind(run) or logs
        logs = [*(older if earlier else []), *logs]
        if not logs and no_answer is not None:
            raise no_answer
        if not logs:
            raise SlurmGpuError(
                f"{selection.text}: Slurm knows no such job of yours",
                hint="slurmgpu status lists jobs; an older one is found by its run directory"
                + ("" if selection.job_id else ", or by its id"),
            )
        found += logs
    by_path: dict[Path | int, Log] = {}
    for number, log in enumerate(found):  # the components of a heterogeneous job write into one file
        by_path.setdefault(log.path or number, log)
    return list(by_path.values())


def _asked(
    slurm: Slurm, user: str | None, selection: Selection
) -> tuple[list[JobStatus], SlurmUnreachable | None]:
    """Return the jobs that a word means, and why they may not be all."""
    try:
        report = status(slurm, user=user, selections=[selection])
    except SlurmUnreachable as error:
        return [], error
    silence = SlurmUnreachable(f"{selection.text}: {report.silence}") if report.silence else None
    return report.jobs, report.no_answer or silence


def _recorded(slurm: Slurm, selection: Selection, run_for: Callable[[JobStatus], Run | None]) -> Run | None:
    """Return the run of a job that is named by its id, as this machine's files tell it; Slurm has not been asked."""
    if selection.job_id is None:
        return None
    number = selection.job_id.number
    run = run_for(JobStatus(job_id=str(number), raw_id=number, state=JobState.UNKNOWN, source="run.json"))
    return run.as_of(number) if run is not None and is_of_this_cluster(run, slurm.env) else None


def _here(run: Run, job_id: JobId | None) -> list[Log]:
    """Return the logs of a run's newest job, or of one task of it, where its record alone leads to them, and all are there."""
    patterns = [one for one in (run.stdout, run.stderr) if one is not None]
    if run.job_id is None or run.stdout is None or not all(one.startswith("/") for one in patterns):
        return []
    job = job_of_record(run)
    if job_id is not None and job_id.tasks:
        job = job.model_copy(update={"job_id": f"{job_id.number}_{job_id.tasks}", "raw_id": None})
    # Only the queue knows which tasks an array has, and the job id of each.
    unknown = ("%j", "%J") if job.raw_id is None else ("%a", "%A")
    if any(sign in one for one in patterns for sign in unknown):
        return []
    logs = logs_of(run, job)
    return logs if _there(logs) == logs else []


def _logs(selection: Selection, job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> list[Log]:
    """Return a job's logs, by the record of its own submission: the run may have been resumed since, with other names."""
    run = selection.run or run_for(job)
    job_id = JobId.parse(job.job_id)
    return logs_of(run.as_of(job_id.number) if run is not None and job_id is not None else run, job)


def _of_record(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> list[Log]:
    """Return the logs of a job that Slurm does not know, where a run directory has its number and they are there."""
    run = run_for(job)
    number = JobId.parse(job.job_id)
    return _there(logs_of(run.as_of(number.number), job)) if run is not None and number is not None else []


def _there(logs: list[Log]) -> list[Log]:
    return [log for log in logs if log.path is not None and log.path.is_file()]


def _of_earlier(run: Run) -> list[Log]:
    """Return the logs that are left of the jobs that a run had before it was resumed."""
    logs = []
    for number in filter(None, (one.job_id for one in run.earlier)):
        then = run.as_of(number)
        tasks = sorted(Path(run.run_dir, "logs").glob(f"{number}_*"))
        logs += _there(logs_of(then, job_of_record(then)))
        logs += [Log(str(number), path) for path in tasks]
    return logs


def _left_behind(run: Run) -> list[Log]:
    """Return the logs in a run directory, whatever Slurm knows: those in its folder of logs, and those of submitit's tasks."""
    paths = sorted((Path(run.run_dir) / "logs").glob("*"))
    logs = [Log(str(run.job_id or run.name), path) for path in paths if path.is_file()]
    return logs + (tasks_of(run, run.job_id, str(run.job_id)) if run.job_id is not None else [])


# Colours before a prefix are no part of it.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# torch's own `[rank3]:`, what torchrun --tee writes (`[default3]:`, or its --role), what srun --label writes (` 3: `).
_RANK = re.compile(r"\[(?:rank ?|default|trainer|worker)(\d{1,6})\]:|\s*(\d{1,6}): ", re.IGNORECASE)
_ISO = re.compile(
    r"[\[(]?(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?\s?(Z|[+-]\d\d:?\d\d)?"
)
_US = re.compile(r"[\[(]?(\d\d)/(\d\d)/(\d{4}),? (\d\d):(\d\d):(\d\d)")  # Hugging Face's examples
_GLOG = re.compile(r"\[?[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)")  # torch's and NCCL's watchdog
_SYSLOG = re.compile(r"\[?([A-Z][a-z]{2})\s+(\d\d?) (\d\d):(\d\d):(\d\d)")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_BETWEEN = "--\n"


class Wanted(NamedTuple):
    """What of a log is to be shown; nothing set: all of it."""

    rank: int | None = None
    since: datetime | None = None
    pattern: re.Pattern[str] | None = None
    context: int = 0
    """Lines before and after each that the pattern finds."""

    @property
    def all(self) -> bool:
        """True if every line is wanted."""
        return self.rank is None and self.since is None and self.pattern is None


def rank_of(line: str) -> int | None:
    """Return the rank that a line's prefix names; of torchrun's `[default3]:`, the one on its node."""
    match = _RANK.match(_COLOUR.sub("", line[:200]))
    return int(match[1] or match[2]) if match else None


def time_of(line: str, now: datetime) -> datetime | None:
    """Return the moment at the beginning of a line, behind its rank; one without a zone is in this machine's.

    Where the year is missing, it is the one that does not lie after `now`.
    """
    text = _COLOUR.sub("", line[:240])
    prefix = _RANK.match(text)
    text = text[prefix.end() :].lstrip() if prefix else text
    try:
        if match := _ISO.match(text):
            zone = (match[7] or "").replace("Z", "+00:00")
            year, month, day, hour, minute, second = map(int, match.groups()[:6])
            moment = datetime(year, month, day, hour, minute, second)
            if zone:
                zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
                return datetime.fromisoformat(moment.isoformat() + zone)
            return moment.astimezone()
        if match := _US.match(text):
            month, day, year, hour, minute, second = map(int, match.groups())
            return datetime(year, month, day, hour, minute, second).astimezone()
        if match := _GLOG.match(text):
            month, day, *clock = map(int, match.groups())
            return _in_its_year(month, day, clock, now)
        match = _SYSLOG.match(text)
        if match and match[1] in _MONTHS:
            day, *clock = map(int, match.groups()[1:])
            return _in_its_year(_MONTHS.index(match[1]) + 1, day, clock, now)
    except (
        ValueError,
        OverflowError,
    ):  # the 31st of February; the last day of the year 9999, west of Greenwich
        return None
    return None


def _in_its_year(month: int, day: int, clock: list[int], now: datetime) -> datetime:
    hour, minute, second = clock
    moment = datetime(now.astimezone().year, month, day, hour, minute, second).astimezone()
    late = (moment - now).total_seconds() > 86400
    return moment.replace(year=moment.year - 1) if late else moment


class LineFilter:
    """One log's lines, as they come, without those that are not wanted."""

    def __init__(self, wanted: Wanted, *, rank: int | None = None, at_first: datetime | None = None) -> None:
        """``rank`` wrote all of the log; ``at_first`` is when its first lines were written, as far as it is known."""
        self._wanted = wanted
        self._log_rank = rank
        self._time = at_first
        self._before: deque[str] = deque(maxlen=wanted.context)
        self._after = 0
        self._number = self._shown = 0
        self.ranked = rank is not None
        """Whether any line said which rank it is of."""

    def go_on(self) -> None:
        """What comes from here on is new, whatever time its lines have: it is since any moment."""
        self._wanted = self._wanted._replace(since=None)

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Those of the next lines that are wanted; between two groups with context `--`, as grep has it."""
        for line in lines:
            if not self._counts(line):
                continue
            self._number += 1
            if self._wanted.pattern is None:
                yield line
            elif self._wanted.pattern.search(_COLOUR.sub("", line)):
                yield from self._group(line)
            elif self._after:
                self._after -= 1
                self._shown = self._number
                yield line
            else:
                self._before.append(line)

    def _group(self, line: str) -> Iterator[str]:
        first = self._number - len(self._before)
        if self._wanted.context and self._shown and first > self._shown + 1:
            yield _BETWEEN
        yield from self._before
        yield line
        self._before.clear()
        self._after, self._shown = self._wanted.context, self._number

    def _counts(self, line: str) -> bool:
        wanted = self._wanted
        if wanted.rank is not None:
            rank = self._log_rank if self._log_rank is not None else rank_of(line)
            self.ranked = self.ranked or rank is not None
            if rank != wanted.rank:
                return False
        if wanted.since is None:
            return True
        self._time = time_of(line, datetime.now(timezone.utc)) or self._time
        return self._time is None or self._time >= wanted.since
