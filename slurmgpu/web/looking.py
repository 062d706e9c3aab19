"""The jobs as all open pages see them: one look at the pace of ``status --watch``, the logs, and the figures of plots."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.live import Snapshot, Source
from slurmgpu.jobs.log_files import Log, absence, last_lines_from, settled, size_of
from slurmgpu.jobs.table import lines
from slurmgpu.jobs.view import Line
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import Harmless
from slurmgpu.runs.metrics import curves
from slurmgpu.runs.samples import gpu_series
from slurmgpu.slurm import JobId

__all__ = ["Looker", "Piece", "metrics_of", "next_piece"]

_FLOOR = 2.0
_MOST_KEPT = 500
_LAST_LINES = 300
_MOST_READ = 1 << 18
"""Bytes of a log in one answer."""
_MOST_POINTS = 2000


class Looker:
    """Asks for the jobs as often as one watcher would, however many pages are open."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._seen: Snapshot | None = None
        self._at = 0.0
        self._told: dict[str, list[str]] = {}

    def jobs(self, *, anew: bool = False) -> Snapshot:
        """Return the jobs, at most as old as the pace, or as the least pause where a person asks ``anew``.

        While one page waits for Slurm, the others get what was seen before. Raises SlurmUnreachable where nothing was.
        """
        known = self._seen
        if known is not None and not self._due(anew):
            return known
        if not self._lock.acquire(blocking=known is None or anew):
            assert known is not None
            return known
        try:
            if self._seen is None or self._due(anew):
                seen = self.source.jobs(anew=anew)
                # Without jobs of others, whoever has sent them.
                own = [job for job in seen.report.jobs if job.user == self.source.user]
                self._seen = seen._replace(report=replace(seen.report, jobs=own))
                self._at = time.monotonic()
            return self._seen
        finally:
            self._lock.release()

    def _due(self, anew: bool) -> bool:
        return time.monotonic() - self._at >= (_FLOOR if anew else self.source.pace)

    def line(self, job_id: str) -> Line | None:
        """Return the line of a job, of a task or of an array; None where none of one's own has this id."""
        # An id that is not known yet may have been submitted since.
        for anew in (False, True) if JobId.parse(job_id) is not None else (False,):
            report = self.jobs(anew=anew).report
            for each_task in (False, True):
                found = lines(report.jobs, each_task=each_task, since=report.since)
                line = next((one for one in found if one.job.job_id == job_id), None)
                if line is not None:
                    return line
        return None

    def cause(self, job: JobStatus) -> list[str]:
        """Return the first cause of a job that failed; read once."""
        key = f"{job.cluster} {job.job_id} {job.state.value} {job.restarts}"
        if key not in self._told:
            if len(self._told) >= _MOST_KEPT:
                self._told.clear()
            self._told[key] = self.source.cause(job)
        return self._told[key]


class Piece(NamedTuple):
    """The text that has come to a log since the last look."""

    text: str
    position: int
    """Where to go on."""
    anew: bool
    """True if the log has begun again, and what was shown before is gone."""
    absent: str
    """Why there is no log."""


def next_piece(log: Log, position: int | None) -> Piece:
    """Return what a log holds from a position on; without one, its last lines."""
    if log.path is None or not log.path.is_file():
        return Piece("", position or 0, False, absence(log) or "there is no log yet")
    try:
        size = size_of(log.path)
        anew = position is not None and position > size
        if position is None or anew:
            position = last_lines_from(log.path, _LAST_LINES, size)
            position = max(position, size - _MOST_READ)
        with open_regular(log.path) as file:
            file.seek(position)
            data = file.read(_MOST_READ)
    except OSError as error:
        return Piece("", position or 0, False, f"{log.path} cannot be read: {error.strerror}")
    data = _whole_letters(data)
    text = re.sub(r"\x1b\[[0-9;:]*m", "", Harmless(redraws=False).text(data.decode("utf-8", "replace")))
    # Of a line that was drawn again, a browser shows the last picture.
    shown = "\n".join(map(settled, text.replace("\r\n", "\n").split("\n")))
    return Piece(shown, position + len(data), anew, "")


def _whole_letters(data: bytes) -> bytes:
    """Without the beginning of a letter whose rest has not come yet."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            whole = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < whole else data
    return data


def metrics_of(source: Source, job: JobStatus) -> dict[str, object]:
    """Return what a page draws: loss and samples per second by step, and each GPU's use, sample by sample."""
    run = source.run_of(job)
    if run is None:
        return {"steps": [], "loss": [], "speed": [], "evals": [], "gpus": []}
    folder = Path(run.run_dir)
    series = gpu_series(folder, job.raw_id) if job.raw_id is not None else []
    gpus = [{"name": f"{one.host}:{one.gpu}", "use": one.use[-_MOST_POINTS:]} for one in series[:16]]
    return {**curves(folder, job), "gpus": gpus}
