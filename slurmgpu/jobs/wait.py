"""Waiting for a job without a burden on the controller, and following its logs as they grow."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.log_files import LONGEST_LINE, Log, settled
from slurmgpu.jobs.logs import LineFilter
from slurmgpu.jobs.look import StatusReport, status
from slurmgpu.jobs.select import Selection
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm

__all__ = ["Ended", "GrowingLogs", "exit_code", "header", "prefixed", "wait_for"]


def header(log: Log) -> str:
    """Return the line above a log's text, as tail writes it."""
    return printable(f"==> {log.title}: {log.path} <==")


def prefixed(log: Log, text: str) -> str:
    """Whole lines, each with the part of the job before it that wrote it."""
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
        """Whether what comes next is the beginning of the file once more."""
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
            if not self._goes_on(file, last):
                return
            file.seek(self._position)
            while piece := file.read(65536):
                self._position += len(piece)
                self._mark = (self._mark or b"")[-_MARK:] + piece[-_MARK:]
                self._mark = self._mark[-_MARK:]
                yield piece

    def _goes_on(self, file: BinaryIO, last: bool) -> bool:
        """Return True if there is something to read now: from the position on, or from the beginning of what has begun anew."""
        size = file.seek(0, 2)
        if size < self._position:
            again, self._was_short = self._was_short, True
            if again or last:
                self._begin_anew()
            return again or last
        self._was_short = False
        mark = self._before(file)
        if self._mark is not None and mark != self._mark:
            self._begin_anew()
        self._mark = mark if self._position else None
        return True

    def _before(self, file: BinaryIO) -> bytes:
        length = min(len(self._mark) if self._mark is not None else _MARK, self._position)
        file.seek(self._position - length)
        return file.read(length)

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


FIRST_POLL, SLOWEST_POLL = 1.0, 30.0
LOG_POLL = 0.5
# Accounting lags behind the queue; only what stays unknown for this long is given up, or, where accounting itself is
# silent, what the queue has not listed for so long.
PATIENCE, PATIENCE_WITH_SILENCE = 60.0, 600.0
# Of an array's tasks, the states alone where their reasons would be a paragraph.
_MOST_REASONS = 3

SILENT = f"Slurm does not answer; asking again every {SLOWEST_POLL:g} s (the job goes on by itself)"

_NAMED = re.compile(r"[Ii]nvalid (?:user|job|partition|field|option)|[Dd]enied|unrecognized option")


@dataclass(frozen=True)
class Ended:
    """How the tasks of a job ended; one for a plain job, one for each task of an array."""

    jobs: list[JobStatus]

    @property
    def known(self) -> bool:
        """True if every task's end is known."""
        return bool(self.jobs) and all(job.state.is_final for job in self.jobs)


def exit_code(ended: Ended) -> int:
    """Return the job's own exit code: of several tasks the highest, 128 + N for a signal, 3 when it is not known.

    A state that is not COMPLETED is never 0, whatever code Slurm recorded (OUT_OF_MEMORY can have 0).
    """
    return max(map(_one_code, ended.jobs)) if ended.known else 3


def _one_code(job: JobStatus) -> int:
    if job.signal:
        return 128 + job.signal
    return job.exit_code or (0 if job.state is JobState.COMPLETED else 1)


@dataclass(frozen=True)
class Onlooker:
    """Who waits for a job, and what is told meanwhile."""

    user: str | None
    """Whose jobs are looked at; None: everybody's."""
    say: Callable[[str], None] | None = None
    """Receives each change of state."""
    write: Callable[[str], None] | None = None
    """Receives the logs that ``logs_of`` finds, as they grow."""
    logs_of: Callable[[JobStatus], list[Log]] | None = None
    logs: GrowingLogs | None = None
    """Those followed already."""
    see: Callable[[list[JobStatus]], None] | None = None
    """Receives the jobs each time that Slurm has told of them."""


def wait_for(
    slurm: Slurm,
    selections: Sequence[Selection],
    onlooker: Onlooker,
    *,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Wait until the selected jobs have ended, and tell the onlooker.

    Slurm is asked after 1 s, then ever less often, every 30 s at most, or takes what another process of the user's was told
    meanwhile. A read that fails ends no wait: a controller that does not answer is asked again at the slowest pace, however
    long that takes.

    Raises SlurmRefused where Slurm says no to the question itself; once it has answered, only by a refusal that
    names what it refuses.
    """
    user, say, logs_of = onlooker.user, onlooker.say, onlooker.logs_of
    logs = onlooker.logs or GrowingLogs()
    interval, next_poll = FIRST_POLL, clock()
    lost_since: float | None = None
    jobs: list[JobStatus] = []
    said: str | None = None
    seen = _Seen()
    while True:
        if clock() >= next_poll:
            if slurm.shelf is not None:
                slurm.shelf.good_for = interval / 2  # one's own last answer is older
            report = _asked(slurm, user, selections, again=bool(jobs))
            if report is None or report.no_answer:
                interval = SLOWEST_POLL
            if report is None or (report.no_answer and report.unasked):
                said = _say_once(SILENT, said, say)
                lost_since = None
            else:
                jobs = report.jobs
                if onlooker.see is not None:
                    onlooker.see(jobs)
                known = not report.no_answer or (Ended(jobs).known and not seen.has_later_than(jobs))
                if not report.no_answer:
                    seen.note(jobs)
                said = _report(jobs, said, say) if known else _say_once(SILENT, said, say)
                if known and Ended(jobs).known:
                    _look_for_logs(jobs, logs, logs_of)
                    break
                _look_for_logs([job for job in jobs if not job.state.is_final or known], logs, logs_of)
                unknown = not jobs or any(job.state is JobState.UNKNOWN for job in jobs)
                unknown = unknown and (not report.no_answer or bool(report.unasked))
                lost_since = (lost_since if lost_since is not None else clock()) if unknown else None
                patience = PATIENCE_WITH_SILENCE if report.unasked else PATIENCE
                if lost_since is not None and clock() - lost_since > patience:
                    break
            # Those who wait look at the same moment, so that one of them asks for all.
            next_poll = clock() + interval - (min(report.age, interval) if report else 0.0)
            interval = min(interval * 1.3, SLOWEST_POLL)
        pause(LOG_POLL)
        logs.pass_on(onlooker.write)
    logs.pass_on(onlooker.write, last=True)
    return Ended(jobs)


class _Seen:
    """When the jobs were submitted that the queue has shown: accounting may know an earlier one of the same id."""

    def __init__(self) -> None:
        self._submitted: dict[str, datetime] = {}

    def note(self, jobs: list[JobStatus]) -> None:
        self._submitted.update({job.job_id: job.submit for job in jobs if job.submit is not None})

    def has_later_than(self, jobs: list[JobStatus]) -> bool:
        """Return True if one of them was there already before the one that the queue has shown."""
        pairs = ((self._submitted.get(job.job_id), job.submit) for job in jobs)
        return any(shown and told and told < shown - timedelta(seconds=60) for shown, told in pairs)


def _asked(
    slurm: Slurm, user: str | None, selections: Sequence[Selection], *, again: bool
) -> StatusReport | None:
    """Return what Slurm says of the jobs; None where nobody answers."""
    try:
        return status(slurm, user=user, selections=selections, detail="sparing")
    except SlurmUnreachable:
        return None
    except SlurmRefused as error:
        if not again or _NAMED.search(error.message):
            raise
        return None  # a library is gone, a limit reached: it says nothing of the job


def _look_for_logs(
    jobs: list[JobStatus], logs: GrowingLogs, logs_of: Callable[[JobStatus], list[Log]] | None
) -> None:
    waits_together = any(job.array_tasks is not None and not job.array_tasks.isdigit() for job in jobs)
    logs.several = logs.several or len(jobs) > 1 or waits_together
    for job in jobs:
        for log in logs_of(job) if logs_of and job.source not in ("none", "run.json") else ():
            logs.add(log)
            if job.state.is_final:
                logs.end(log)


def _report(jobs: list[JobStatus], said: str | None, say: Callable[[str], None] | None) -> str | None:
    states = {job.state.value for job in jobs}
    texts = {f"{job.state.value}: {why}" if (why := reason(job)) else job.state.value for job in jobs}
    return _say_once("; ".join(sorted(states if len(texts) > _MOST_REASONS else texts)), said, say)


def _say_once(text: str, said: str | None, say: Callable[[str], None] | None) -> str | None:
    if say and text and text != said:
        say(text)
    return text or said
