"""What a training of slurmgpu's own says of itself in metrics.jsonl: its losses, its loader's waits, the steps it kept.

docs/metrics.md describes the file. It lies in a folder that may be somebody else's, and may be cut off anywhere.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Training", "number_of", "read_lines", "read_training", "training_of"]

FILE = "metrics.jsonl"
LARGEST = 64 << 20
"""Bytes that are read; of a longer file the end, where what counts stands."""
_SCHEMA = "slurmgpu.metrics/1"
_LARGEST_NUMBER = 10**15


@dataclass(frozen=True)
class Training:
    """A training by its metrics; None is "not measured"."""

    steps: int | None = None
    """The newest step."""
    total_steps: int | None = None
    losses: tuple[tuple[int, float], ...] = ()
    """Step and loss of each line that counts, in the order of the steps."""
    loader_wait: float | None = None
    """Part of the step time spent waiting for a batch, 0 to 1, over all steps that count."""
    kept_seconds: float | None = None
    """Time of the steps that count: those that no later start repeated."""
    repeated_seconds: float = 0.0
    """Time of the steps that a later start repeated."""
    steps_of_last_start: int | None = None
    seconds_of_last_start: float | None = None
    """From its first line to its newest."""
    world_size: int | None = None
    workers: int | None = None
    """Loader workers of each process, where the settings name a number."""
    finished: bool = False
    """Whether it has come to its own end."""
    whole: bool = True
    """Whether all of it was read, and is the job's alone."""


def read_training(run_dir: Path) -> Training | None:
    """The training in a run directory; None where there is none."""
    found = read_lines(run_dir)
    return None if found is None else training_of(iter(found[0]), whole=found[1])


def read_lines(run_dir: Path) -> tuple[list[Mapping[str, object]], bool] | None:
    """The lines of a run directory's metrics, each with its ``values``, and whether they are all; None without any."""
    try:
        descriptor = os.open(run_dir / FILE, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode) or not there.st_size:
            return None
        whole = there.st_size <= LARGEST
        if not whole:
            file.seek(there.st_size - LARGEST)
            file.readline()  # cut off
        return list(_lines(file.read(LARGEST))), whole


def _lines(data: bytes) -> Iterator[Mapping[str, object]]:
    for line in data.split(b"\n"):
        if not line.startswith(b"{"):
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off by a kill
        if (
            isinstance(found, dict)
            and found.get("schema") == _SCHEMA
            and isinstance(found.get("values"), dict)
        ):
            yield found


@dataclass
class _Interval:
    """The steps of one train line."""

    first: int
    last: int
    restart: int
    seconds: float
    waited: float | None
    loss: float | None

    @property
    def steps(self) -> int:
        return self.last - self.first


def training_of(lines: Iterator[Mapping[str, object]], *, whole: bool = True) -> Training | None:
    """Add the lines up."""
    intervals: list[_Interval] = []
    total: int | None = None
    finished = False
    restart, at = -1, 0
    first_time = last_time = None
    resumed = 0
    begun: Mapping[str, object] = {}
    for line in lines:
        number, step, time = (number_of(line.get(key)) for key in ("restart", "step", "time"))
        values = line["values"]
        if number is None or step is None or not isinstance(values, dict):
            continue
        if number > restart:
            restart, first_time, resumed, at = int(number), time, int(step), int(step)
        last_time, finished = time, False
        kind = line.get("kind")
        if kind == "start":
            at, begun = int(step), values
            resumed = at
            total = _whole(values.get("total_steps")) or total
        elif kind == "train" and step > at:
            intervals.append(_interval(at, int(step), int(number), values))
            at = int(step)
        elif kind == "end":
            finished = values.get("reason") in {"epochs", "max_steps", "SLURMGPU_MAX_STEPS"}
    if restart < 0:
        return None
    kept = _kept(intervals)
    known = [one for one in kept if one.waited is not None and one.seconds > 0]
    seconds = sum(one.seconds for one in known)
    return Training(
        steps=at,
        total_steps=total,
        losses=tuple((one.last, one.loss) for one in kept if one.loss is not None),
        loader_wait=sum(one.waited or 0.0 for one in known) / seconds if seconds else None,
        kept_seconds=sum(one.seconds for one in kept) if kept else None,
        repeated_seconds=sum(one.seconds for one in intervals) - sum(one.seconds for one in kept),
        steps_of_last_start=at - resumed,
        seconds_of_last_start=last_time - first_time
        if last_time is not None and first_time is not None
        else None,
        world_size=_whole(begun.get("world_size")),
        workers=_workers(begun),
        finished=finished,
        whole=whole,
    )


def _workers(start: Mapping[str, object]) -> int | None:
    settings = start.get("settings")
    return _whole(settings.get("workers")) if isinstance(settings, dict) else None


def _interval(first: int, last: int, restart: int, values: Mapping[str, object]) -> _Interval:
    seconds = number_of(values.get("step_seconds")) or 0.0
    waited = number_of(values.get("data_wait_seconds"))
    steps = last - first
    return _Interval(
        first,
        last,
        restart,
        max(0.0, seconds) * steps,
        None if waited is None else max(0.0, waited) * steps,
        number_of(values.get("loss")),
    )


def _kept(intervals: list[_Interval]) -> list[_Interval]:
    """Those steps that no later start repeated; an interval that one begins within counts in part."""
    kept: list[_Interval] = []
    floor: int | None = None  # the first step of all later starts
    for one in reversed(intervals):
        if floor is not None and one.first >= floor:
            continue
        if floor is not None and one.last > floor:
            share = (floor - one.first) / one.steps
            waited = None if one.waited is None else one.waited * share
            one = _Interval(one.first, floor, one.restart, one.seconds * share, waited, None)
        kept.append(one)
        floor = one.first if floor is None else min(floor, one.first)
    return kept[::-1]


def number_of(value: object) -> float | None:
    """A number within reason: JSON has such as 1e999, and ours writes none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_LARGEST_NUMBER < value < _LARGEST_NUMBER else None


def _whole(value: object) -> int | None:
    number = number_of(value)
    return None if number is None else int(number)
