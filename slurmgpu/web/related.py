"""A job's relatives on its page: the tasks of an array beside each other, and the jobs that wait for one another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.jobs.live import Source
from slurmgpu.jobs.select import run_of
from slurmgpu.jobs.table import lines
from slurmgpu.jobs.view import WAITS_FOR, After, Line, read_dependency
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.runs.directory import read_plan
from slurmgpu.runs.metrics import Trial, curves, trial_of
from slurmgpu.slurm import JobId

__all__ = ["Box", "Graph", "Related", "connected", "layers"]

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
    """True if it is the job that the page is about."""
    waits_for: list[str]
    """The events that it waits or waited for, in words."""


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

    def __init__(self, source: Source) -> None:
        self.source = source
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
        known, array = self.source.seen().report.jobs, line.job.array_job_id
        own = [job for job in known if job.array_job_id == array and job.array_tasks is not None]
        jobs = [one.job for one in lines([job for job in own if _is_there(job, line.job)], each_task=True)]
        # Those that wait have no files yet.
        jobs = sorted(jobs, key=lambda job: (job.state.is_waiting, _task(job)))
        run = self.source.run_of(jobs[0]) if jobs else None
        trials = [
            Trial(job, None, {}) if run is None or job.state.is_waiting else trial_of(Path(run.run_dir), job)
            for job in jobs[:_MOST_TRIALS]
        ]
        trials.sort(key=lambda one: _task(one.job))
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
        report = self.source.seen().report
        known: dict[int, Line] = {}
        for one in lines(report.jobs, since=report.since):
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
        now, then = read_dependency(job.dependency or ""), read_dependency(self._asked(job))
        seen = {one.number for one in now}
        return now + [one for one in then if one.number not in seen]

    def _asked(self, job: JobStatus) -> str:
        key = f"{job.cluster} {job.job_id} {job.submit}"
        if key not in self._planned:
            # A job in the queue names its script; of one that has ended, the trace that it has left is found.
            run = self.source.quick_run(job) if job.state.is_final else run_of(job)
            if run is None:
                return ""
            if len(self._planned) > _MOST_RELATED:
                self._planned.clear()
            self._planned[key] = ""
            with suppress(InvalidInput):
                self._planned[key] = read_plan(Path(run.run_dir)).option("dependency") or ""
        return self._planned[key]


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
        others = after.get(task, [])
        waits_for = [WAITS_FOR.get(one.kind, "{}").format(one.job) for one in others]
        title = printable(f"{known[task].job.job_id} {known[task].job.name}")
        title = title if len(title) <= _MOST_LETTERS else title[: _MOST_LETTERS - 1] + "…"
        boxes.append(Box(known[task], x, y, title, task == here, waits_for))
        for left, top in (places[one.number] for one in others if one.number in places):
            begin, tip, middle, end = left + _WIDE, x - 7, top + _HIGH // 2, y + _HIGH // 2
            bend = max(20, (tip - begin) // 2)
            arrows.append(f"M{begin} {middle}C{begin + bend} {middle} {tip - bend} {end} {tip} {end}")
    return Graph(boxes, arrows, len(columns) * (_WIDE + _GAP_X) - _GAP_X, height, 0, [])


def connected(start: int, before: Mapping[int, Iterable[int]]) -> set[int]:
    """Return all that ``start`` waits for or that waits for it, over any number of jobs between; itself too.

    ``before`` has, of each job, those that it waits for.
    """
    neighbours: dict[int, set[int]] = {}
    for job, others in before.items():
        for other in others:
            neighbours.setdefault(job, set()).add(other)
            neighbours.setdefault(other, set()).add(job)
    found, left = {start}, [start]
    while left:
        new = neighbours.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def layers(jobs: Iterable[int], before: Mapping[int, Iterable[int]]) -> Sequence[list[int]]:
    """Return the jobs in columns, each one after all that it waits for; in a circle, which Slurm allows nobody, somewhere."""
    left, placed = sorted(jobs), set[int]()
    among = set(left)
    made = []
    while left:
        free = [job for job in left if all(one in placed or one not in among for one in before.get(job, ()))]
        column = free or left
        made.append(column)
        placed.update(column)
        left = [job for job in left if job not in placed]
    return made
