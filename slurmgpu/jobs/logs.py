"""The logs of jobs: where a word leads to, which of their lines are wanted, and following them as they grow."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.log_files import LONGEST_LINE, Log, logs_of, settled, tasks_of
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import Selection, is_of_this_cluster, job_of_record
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.slurm import JobId, Slurm

__all__ = ["GrowingLogs", "LineFilter", "Wanted", "find_logs", "header", "prefixed", "rank_of", "time_of"]


def find_logs(
    slurm: Slurm,
    selections: Sequence[Selection],
    user: str | None,
    run_for: Callable[[JobStatus], Run | None],
    *,
    earlier: bool = True,
) -> list[Log]:
    """Return the logs of the jobs that some words mean; what a run directory, or its record of an id, leads to needs no Slurm.

    ``run_for`` finds the run of a job. With ``earlier`` a run directory's earlier jobs come first, oldest first.

    Raises SlurmUnreachable when a word is not a run directory and nothing answers; SlurmGpuError for an unknown job.
    """
    found: list[Log] = []
    for selection in selections:
        run, job_id = selection.run, selection.job_id
        if job_id is not None:  # as this machine's files tell it; Slurm has not been asked
            number, state = job_id.number, JobState.UNKNOWN
            known = run_for(JobStatus(job_id=str(number), raw_id=number, state=state, source="run.json"))
            run = known.as_of(number) if known is not None and is_of_this_cluster(known, slurm.env) else None
        older = _of_earlier(selection.run) if selection.run is not None else []
        here = _here(run, job_id) if run is not None else []
        if here:
            found += [*(older if earlier else []), *here]
            continue
        try:
            report = status(slurm, user=user, selections=[selection])
            silence = SlurmUnreachable(f"{selection.text}: {report.silence}") if report.silence else None
            jobs, no_answer = report.jobs, report.no_answer or silence
        except SlurmUnreachable as error:
            jobs, no_answer = [], error
        logs: list[Log] = []
        for job in jobs:
            if job.source != "none":
                # By the record of its own submission: the run may have been resumed since, with other names.
                logs += logs_of(_as_of(selection.run or run_for(job), job), job)
        for job in jobs if not logs else ():
            # Slurm does not know it: where a run directory has its number, and its logs are there.
            own = _as_of(run_for(job), job)
            logs += _there(logs_of(own, job)) if own is not None else []
        if no_answer is not None:  # what accounting says of a job that waits may be old
            said = "the queue does not answer, and accounting says: "
            logs = [log._replace(why=said + log.why) if log.why else log for log in logs]
        there = older or any(log.path and log.path.exists() for log in logs)
        if run is not None and not there and not (job_id and job_id.tasks):
            # Whatever Slurm knows: those in its folder of logs, and those of submitit's tasks.
            paths = [path for path in sorted(Path(run.run_dir, "logs").glob("*")) if path.is_file()]
            left = [Log(str(run.job_id or run.name), path) for path in paths]
            left += tasks_of(run, run.job_id, str(run.job_id)) if run.job_id is not None else []
            logs = left or logs
        logs = [*(older if earlier else []), *logs]
        if not logs and no_answer is not None:
            raise no_answer
        if not logs:
            raise SlurmGpuError(
                f"{selection.text}: Slurm knows no such job of yours",
                hint="slurmgpu status lists jobs; an older one is found by its run directory"
                + ("" if job_id else ", or by its id"),
            )
        found += logs
    by_path: dict[Path | int, Log] = {}
    for number, log in enumerate(found):  # the components of a heterogeneous job write into one file
        by_path.setdefault(log.path or number, log)
    return list(by_path.values())


def _as_of(run: Run | None, job: JobStatus) -> Run | None:
    number = JobId.parse(job.job_id)
    return run.as_of(number.number) if run is not None and number is not None else run


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
    """The lines of a log that are to be shown; nothing set: all of them."""

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
    except (ValueError, OverflowError):
        pass  # the 31st of February; the last day of the year 9999, west of Greenwich
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
        """True if any line said which rank it is of."""

    def go_on(self) -> None:
        """Count what comes from here on as new, whatever time its lines have."""
        self._wanted = self._wanted._replace(since=None)

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield those of the next lines that are wanted; between two groups with context `--`, as grep has it."""
        for line in lines:
            if not self._counts(line):
                continue
            self._number += 1
            if self._wanted.pattern is None:
                yield line
            elif self._wanted.pattern.search(_COLOUR.sub("", line)):
                first = self._number - len(self._before)
                if self._wanted.context and self._shown and first > self._shown + 1:
                    yield _BETWEEN
                yield from self._before
                yield line
                self._before.clear()
                self._after, self._shown = self._wanted.context, self._number
            elif self._after:
                self._after -= 1
                self._shown = self._number
                yield line
            else:
                self._before.append(line)

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


def header(log: Log) -> str:
    """Return the line above a log's text, as tail writes it."""
    return printable(f"==> {log.title}: {log.path} <==")


def prefixed(log: Log, text: str) -> str:
    """Return whole lines, each with the part of the job before it that wrote it."""
    stream = "" if log.stream == "both" else log.stream
    label = printable(", ".join(filter(None, (log.job_id if not log.part else log.part, stream))))
    return "".join(f"{label} | {line}" for line in _lines(text))


# So much of what stood before a position is compared with what stands there now.
_MARK = 64


class _GrowingLog:
    """One file that grows, and may not be there yet.

    A requeued job begins its log anew unless it appends: the file is shorter then, or another one, or has other text where
    this process has stopped reading. A file that is shorter at one look and not at the next was a network file system's
    old news.
    """

    def __init__(self, log: Log, path: Path, position: int) -> None:
        self.log = log
        self.begun_anew = False
        """True if what comes next is the beginning of the file once more."""
        self._path = path
        self._position = position
        self._mark: bytes | None = None
        self._was_short = False
        # A piece may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def new(self, *, whole_lines: bool, last: bool) -> Iterator[str]:
        """Yield what has come since the last call; a line that is not at its end yet waits with ``whole_lines``."""
        for piece in self._read(last):
            text = self._held + self._decoder.decode(piece)
            # A progress bar ends its lines with a carriage return.
            end = max(text.rfind("\n"), text.rfind("\r")) + 1 if whole_lines else len(text)
            end = len(text) if len(text) - end > LONGEST_LINE else end
            self._held = text[end:]
            if end:
                yield text[:end]
        if last and (rest := self._held + self._decoder.decode(b"", True)):
            self._held = ""
            yield rest

    def _read(self, last: bool) -> Iterator[bytes]:
        try:
            file = open_regular(self._path)
        except OSError:
            return
        with file:
            if not self._continues(file, last):
                return
            file.seek(self._position)
            while piece := file.read(65536):
                self._position += len(piece)
                self._mark = (self._mark or b"")[-_MARK:] + piece[-_MARK:]
                self._mark = self._mark[-_MARK:]
                yield piece

    def _continues(self, file: BinaryIO, last: bool) -> bool:
        """Return True if there is something to read now: from the position on, or from the beginning of what has begun anew."""
        size = file.seek(0, 2)
        if size < self._position:
            again, self._was_short = self._was_short, True
            if again or last:
                self._begin_anew()
            return again or last
        self._was_short = False
        length = min(len(self._mark) if self._mark is not None else _MARK, self._position)
        file.seek(self._position - length)
        mark = file.read(length)
        if self._mark is not None and mark != self._mark:
            self._begin_anew()
        self._mark = mark if self._position else None
        return True

    def _begin_anew(self) -> None:
        self._position, self._mark, self._held, self._was_short = 0, None, "", False
        self._decoder.reset()
        self.begun_anew = True


class GrowingLogs:
    """The logs that are followed. With ``several``, or once there are, headers come above each one's lines.

    With ``prefixes`` each line says whose it is instead; ``filter_of`` finds what takes out lines of a log.
    """

    def __init__(
        self,
        several: bool = False,
        *,
        prefixes: bool = False,
        filter_of: Callable[[Log], LineFilter | None] = lambda _: None,
    ) -> None:
        self.several = several
        self.prefixes = prefixes
        self.filter_of = filter_of
        self._filters: dict[Path, LineFilter | None] = {}
        self._logs: dict[Path, _GrowingLog] = {}
        self._ending: list[_GrowingLog] = []
        self._done: set[Path] = set()
        self._shown: _GrowingLog | None = None
        self._open_line = False

    @property
    def shown(self) -> bool:
        """True if there was anything to show."""
        return self._shown is not None

    def filter_for(self, log: Log) -> LineFilter | None:
        """Return what takes out lines of a log, with what it remembers of those that came before."""
        if log.path is None:
            return None
        if log.path not in self._filters:
            self._filters[log.path] = self.filter_of(log)
        return self._filters[log.path]

    def add(self, log: Log, position: int = 0, *, shown: bool = False) -> None:
        """Follow a log from a position on; one that is known already is left as it is.

        ``shown``: what is before the position is last on the screen.
        """
        if log.path is None or log.path in self._done:
            return
        growing = self._logs.setdefault(log.path, _GrowingLog(log, log.path, position))
        self._shown = growing if shown else self._shown
        self.several = self.several or len(self._logs) > 1

    def end(self, log: Log) -> None:
        """Look at a log once more and no more, for its job has ended."""
        if log.path is not None and log.path in self._logs:
            self._ending.append(self._logs[log.path])

    def pass_on(self, write: Callable[[str], None] | None, *, last: bool = False) -> None:
        """Write what has come since the last call; with ``last`` also what ends in no newline."""
        for growing in list(self._logs.values()):
            ends = last or growing in self._ending
            lines = self.filter_for(growing.log)
            whole = self.several or self.prefixes or lines is not None
            for text in growing.new(whole_lines=whole, last=ends):
                wanted = "".join(lines.lines(_lines(text))) if lines is not None else text
                if write is not None and wanted:
                    self._write(growing, wanted, write)
        for growing in self._ending:
            if growing.log.path is not None:
                self._logs.pop(growing.log.path, None)
                self._done.add(growing.log.path)
        self._ending.clear()

    def _write(self, growing: _GrowingLog, text: str, write: Callable[[str], None]) -> None:
        head = self.several and growing is not self._shown and not self.prefixes
        if head or growing.begun_anew:
            anew = " (begun anew)" if growing.begun_anew else ""
            write(f"{chr(10) if self._open_line else ''}{header(growing.log)}{anew}\n")
            growing.begun_anew = False
        self._shown = growing
        self._open_line = not text.endswith("\n")
        write(prefixed(growing.log, text) if self.prefixes else text)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, each with its end, of a progress bar what it shows last."""
    *whole, rest = text.split("\n")
    for line in [*whole, rest] if rest else whole:
        yield settled(line) + "\n"
