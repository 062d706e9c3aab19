"""What all open pages see of the jobs: one look at the pace of ``status --watch``, arrays, and jobs that wait for others."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.arrays import Among, Line
from slurmgpu.jobs.arrays import lines as lines_of
from slurmgpu.jobs.live import Seen, Source
from slurmgpu.jobs.log_files import Log, absence, last_lines_from, size_of
from slurmgpu.jobs.select import WAITS_FOR, After, connected, layers, read_dependency, run_of
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.printable import Harmless, printable
from slurmgpu.runs.directory import read_plan
from slurmgpu.runs.metrics import Trial, curves, trial_of
from slurmgpu.runs.samples import gpu_series
from slurmgpu.slurm import JobId

__all__ = ["Box", "Graph", "Looker", "Piece", "Related", "metrics_of", "next_piece"]


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
        self._seen: Seen | None = None
        self._at = 0.0
        self._told: dict[str, list[str]] = {}

    def jobs(self, *, anew: bool = False) -> Seen:
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
                self._seen = self._own(self.source.jobs(anew=anew))
                self._at = time.monotonic()
            return self._seen
        finally:
            self._lock.release()

    def _due(self, anew: bool) -> bool:
        return time.monotonic() - self._at >= (_FLOOR if anew else self.source.pace)

    def _own(self, seen: Seen) -> Seen:
        """Without jobs of others, whoever has sent them."""
        own = [job for job in seen.report.jobs if job.user == self.source.user]
        return seen._replace(report=replace(seen.report, jobs=own))

    def line(self, job_id: str) -> Line | None:
        """Return the line of a job, of a task or of an array; None where none of one's own has this id."""
        known = self._line(self.jobs(), job_id)
        if known is None and JobId.parse(job_id) is not None:
            known = self._line(self.jobs(anew=True), job_id)  # it may have been submitted since
        return known

    def _line(self, seen: Seen, job_id: str) -> Line | None:
        report = seen.report
        among = Among(report.since)
        for each_task in (False, True):
            found = lines_of(report.jobs, each_task=each_task, among=among)
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
    """What has come to a log since the last look."""

    text: str
    position: int
    """Where to go on."""
    anew: bool
    """Whether the log has begun again, and what was shown before is gone."""
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
    harmless = Harmless(redraws=False)
    text = harmless.text(data.decode("utf-8", "replace"))
    return Piece(_without_colours(text), position + len(data), anew, "")


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


def _without_colours(text: str) -> str:
    """Return lines as a browser shows them: without a terminal's colours, and of a line that was drawn again the last."""
    plain = re.sub(r"\x1b\[[0-9;:]*m", "", text).replace("\r\n", "\n")
    return "\n".join(
        line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in plain.split("\n")
    )


def metrics_of(source: Source, job: JobStatus) -> dict[str, object]:
    """Return what a page draws: loss and samples per second by step, and each GPU's use, sample by sample."""
    run = source.run_of(job)
    if run is None:
        return {"steps": [], "loss": [], "speed": [], "evals": [], "gpus": []}
    folder = Path(run.run_dir)
    series = gpu_series(folder, job.raw_id) if job.raw_id is not None else []
    gpus = [{"name": f"{one.host}:{one.gpu}", "use": one.use[-_MOST_POINTS:]} for one in series[:16]]
    return {**curves(folder, job), "gpus": gpus}


_MOST_TRIALS = 100
"""Tasks of an array whose files are read: each costs some reads, on file systems that may be slow."""
_MOST_DRAWN = 16
_MOST_RESULTS = 12
_MOST_LINES = 400
"""Jobs among whose runs dependencies are looked for."""
_MOST_RELATED = 4000
_MOST_BOXES = 60
_MOST_ARRAYS = 8
_GOOD_FOR = 8.0
"""Seconds for which the tasks' files are not read again, however many pages show them."""
_WIDE, _HIGH, _GAP_X, _GAP_Y = 200, 52, 56, 16
_MOST_LETTERS = 26


class Box(NamedTuple):
    """A job in the drawing; lengths are the drawing's own units."""

    line: Line
    x: int
    y: int
    title: str
    is_here: bool
    """Whether it is the job that the page is about."""
    waits_for: list[str]
    """What it waits for, in words, or waited for."""


class Graph(NamedTuple):
    """The jobs that wait for one another, drawn from left to right."""

    boxes: list[Box]
    arrows: list[str]
    """Each as the path of an SVG."""
    width: int
    height: int
    left_out: int
    gone: list[int]
    """Jobs that others wait, or waited, for and that are not among the jobs of the list."""

    box_width: int = _WIDE
    box_height: int = _HIGH


class _Array(NamedTuple):
    at: float
    run: Run | None
    trials: list[Trial]
    more: int
    """Tasks whose files were not read."""


class Related:
    """Reads what belongs to jobs, for as many pages as there are."""

    def __init__(self, looker: Looker) -> None:
        self.looker = looker
        self._planned: dict[str, str] = {}
        self._arrays: dict[str, _Array] = {}
        self._lock = threading.Lock()

    def _array(self, line: Line) -> _Array:
        """Return the tasks of an array with what their files tell, by their numbers."""
        key = f"{line.job.cluster} {line.job.array_job_id}"
        with self._lock:
            found = self._arrays.get(key)
            if found is None or time.monotonic() - found.at > _GOOD_FOR:
                if len(self._arrays) >= _MOST_ARRAYS:
                    self._arrays.clear()
                found = self._arrays[key] = self._read(line)
            return found

    def _read(self, line: Line) -> _Array:
        own = [
            job
            for job in self.looker.jobs().report.jobs
            if job.array_job_id == line.job.array_job_id
            and job.array_tasks is not None
            and _is_there(job, line.job)
        ]
        jobs = [one.job for one in lines_of(own, each_task=True)]
        # Those that wait have no files yet.
        jobs = sorted(jobs, key=lambda job: (job.state.is_waiting, _task(job)))
        run = self.looker.source.run_of(jobs[0]) if jobs else None
        trials = sorted((_trial(job, run) for job in jobs[:_MOST_TRIALS]), key=lambda one: _task(one.job))
        return _Array(time.monotonic(), run, trials, len(jobs) - len(trials))

    def tasks(self, line: Line, *, best_first: bool) -> dict[str, Any]:
        """Return the table of an array's tasks."""
        array = self._array(line)
        trials = array.trials
        results = list(dict.fromkeys(name for one in trials for name in one.results))[:_MOST_RESULTS]
        if best_first:
            trials = sorted(trials, key=_loss)
        return {"trials": trials, "more": array.more, "results": results}

    def metrics(self, line: Line) -> dict[str, Any]:
        """Return what a page draws of an array: the losses of some tasks step by step, and where each task is now."""
        _, run, trials, _ = self._array(line)
        told = [one for one in trials if one.progress is not None]
        drawn = sorted(told, key=_loss)[:_MOST_DRAWN] if run is not None else []
        return {
            "jobs": [
                {"job": str(_task(one.job)), **curves(Path(run.run_dir if run else ""), one.job)}
                for one in sorted(drawn, key=lambda one: _task(one.job))
            ],
            "tasks": [_task(one.job) for one in told],
            "losses": [one.progress.loss if one.progress else None for one in told],
            "results": [one.results.get("loss") for one in told],
            "final": all(one.job.state.is_final for one in trials),
        }

    def graph(self, line: Line) -> Graph | None:
        """Return the jobs that this one waits for and that wait for it, over any number between; None where there are none."""
        here = _number(line.job)
        report = self.looker.jobs().report
        known: dict[int, Line] = {}
        for one in lines_of(report.jobs, among=Among(report.since)):
            if _is_there(one.job, line.job) and (number := _number(one.job)) is not None:
                known.setdefault(number, one)
        if here is None or here not in known:
            return None
        near = sorted(known, key=lambda number: abs(number - here))[:_MOST_LINES]
        after = {number: self._after(known[number].job) for number in near}
        before = {number: {one.number for one in told if one.number} for number, told in after.items()}
        among = connected(here, before)
        if len(among) == 1:
            return None
        shown = sorted(among & known.keys(), key=lambda number: abs(number - here))[:_MOST_BOXES]
        drawn = _drawn(layers(shown, before), known, here, after)
        gone = sorted(among - known.keys())
        return drawn._replace(left_out=len(among) - len(gone) - len(shown), gone=gone[:_MOST_BOXES])

    def _after(self, job: JobStatus) -> list[After]:
        """Return what a job waits for by Slurm's words, and what it was submitted with: Slurm forgets what has happened."""
        told = read_dependency(job.dependency or "")
        asked = read_dependency(self._asked(job))
        seen = {one.number for one in told}
        return told + [one for one in asked if one.number not in seen]

    def _asked(self, job: JobStatus) -> str:
        key = f"{job.cluster} {job.job_id} {job.submit}"
        if key not in self._planned:
            # A job in the queue names its script; of one that has ended, the trace that it has left is found.
            run = self.looker.source.quick_run(job) if job.state.is_final else run_of(job)
            if run is None:
                return ""
            if len(self._planned) > _MOST_RELATED:
                self._planned.clear()
            self._planned[key] = _dependency(run)
        return self._planned[key]


def _dependency(run: Run) -> str:
    try:
        return read_plan(Path(run.run_dir)).option("dependency") or ""
    except InvalidInput:
        return ""


def _trial(job: JobStatus, run: Run | None) -> Trial:
    if run is None or job.state.is_waiting:
        return Trial(job, None, {})
    return trial_of(Path(run.run_dir), job)


def _is_there(job: JobStatus, other: JobStatus) -> bool:
    """Return True if both are on one cluster: squeue names none where there is one, and sacct does."""
    return job.cluster == other.cluster or None in (job.cluster, other.cluster)


def _task(job: JobStatus) -> int:
    digits = (job.array_tasks or "").strip("[]").partition("%")[0]
    return int(digits) if digits.isdecimal() and digits.isascii() else 1 << 31


def _loss(trial: Trial) -> tuple[float, int]:
    loss = trial.results.get("loss", trial.progress.loss if trial.progress else None)
    return (float("inf") if loss is None else loss, _task(trial.job))


def _number(job: JobStatus) -> int | None:
    found = JobId.parse(job.job_id)
    return found.number if found is not None else None


def _drawn(
    columns: Sequence[list[int]], known: Mapping[int, Line], here: int, after: Mapping[int, list[After]]
) -> Graph:
    tallest = max(len(column) for column in columns)
    height = tallest * (_HIGH + _GAP_Y) - _GAP_Y
    places: dict[int, tuple[int, int]] = {}
    for index, column in enumerate(columns):
        top = (tallest - len(column)) * (_HIGH + _GAP_Y) // 2
        for row, task in enumerate(column):
            places[task] = (index * (_WIDE + _GAP_X), top + row * (_HIGH + _GAP_Y))
    boxes, arrows = [], []
    for task, (x, y) in places.items():
        told = after.get(task, [])
        waits_for = [WAITS_FOR.get(one.kind, "{}").format(one.job) for one in told]
        boxes.append(Box(known[task], x, y, _cut(known[task].job), task == here, waits_for))
        for one in told:
            if one.number in places:
                left, top = places[one.number]
                arrows.append(_arrow(left + _WIDE, top + _HIGH // 2, x, y + _HIGH // 2))
    return Graph(boxes, arrows, len(columns) * (_WIDE + _GAP_X) - _GAP_X, height, 0, [])


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    tip = to_x - 7
    bend = max(20, (tip - x) // 2)
    return f"M{x} {y}C{x + bend} {y} {tip - bend} {to_y} {tip} {to_y}"


def _cut(job: JobStatus) -> str:
    text = printable(f"{job.job_id} {job.name}")
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
