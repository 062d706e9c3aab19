"""A line of ``metrics.jsonl`` (docs/metrics.md), as it is written and as it is read, and the steps that lines tell of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from .rows import Row, number, part, positive, rows_at_end, whole

__all__ = [
    "METRICS_FILE",
    "METRICS_SCHEMA",
    "Interval",
    "MetricsRow",
    "intervals_of",
    "kept_intervals",
    "metrics_at_end",
    "metrics_line",
    "metrics_rows",
]

METRICS_FILE = "metrics.jsonl"
METRICS_SCHEMA = "slurmgpu.metrics/1"
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_TAIL = 1 << 20
"""Bytes from the end of a file: some thousand lines."""


class MetricsRow(NamedTuple):
    """One line; its values have not been looked at."""

    kind: str
    time: Optional[float]
    """Seconds since 1970."""
    restart: int
    step: int
    values: Row


def metrics_line(row: MetricsRow, rank: int) -> str:
    """Return the text of a line; a number that is not finite becomes null, because JSON has none."""
    line = {
        "schema": METRICS_SCHEMA,
        "time": None if row.time is None else round(row.time, 6),
        "restart": row.restart,
        "rank": rank,
        "step": row.step,
        "kind": row.kind,
        "values": row.values,
    }
    try:
        return _ENCODE(line) + "\n"
    except ValueError:
        return _ENCODE(_finite(line)) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value


def metrics_rows(rows: Iterable[Row]) -> Iterator[MetricsRow]:
    """Yield those rows that say what they are of."""
    for row in rows:
        kind, restart, step = row.get("kind"), whole(row.get("restart")), whole(row.get("step"))
        if isinstance(kind, str) and restart is not None and step is not None:
            yield MetricsRow(kind, number(row.get("time")), restart, step, part(row, "values"))


def metrics_at_end(run_dir: Path, most: int = _TAIL) -> Iterator[MetricsRow]:
    """Return the rows in the last bytes of a run directory's file; none where there is no such file."""
    return metrics_rows(rows_at_end(run_dir / METRICS_FILE, METRICS_SCHEMA, most))


class Interval(NamedTuple):
    """The steps of one ``train`` line, whose values are means over them."""

    first: int
    """The step before the first one."""
    last: int
    restart: int
    seconds: float
    """Of all its steps, as the next two."""
    waited: Optional[float]
    """For batches; None: not measured."""
    saving: float
    loss: Optional[float]

    @property
    def steps(self) -> int:
        """Return how many steps it has."""
        return self.last - self.first

    def share_up_to(self, step: int) -> float:
        """Return which part of its steps a checkpoint of this step has."""
        return min(max(step - self.first, 0), self.steps) / self.steps


def intervals_of(rows: Iterable[MetricsRow], begin: Optional[int] = None) -> Iterator[Interval]:
    """Yield the intervals of the rows in their order; ``begin``: the step that the first one follows, else as rows say."""
    at, restart = begin, -1
    for row in rows:
        if row.kind == "start" or at is None or row.restart > restart >= 0:
            at = row.step
        elif row.kind == "train" and row.step > at:
            steps, values = row.step - at, row.values
            waited = number(values.get("data_wait_seconds"))
            yield Interval(
                at,
                row.step,
                row.restart,
                steps * (positive(values.get("step_seconds")) or 0.0),
                None if waited is None else steps * max(0.0, waited),
                steps * (positive(values.get("checkpoint_seconds")) or 0.0),
                number(values.get("loss")),
            )
            at = row.step
        restart = max(restart, row.restart)


def kept_intervals(intervals: Sequence[Interval]) -> list[Interval]:
    """Return those whose steps no later start repeated; one that a later start begins within counts in part."""
    kept: list[Interval] = []
    floor: Optional[int] = None  # the first step of all later starts
    for one in reversed(intervals):
        if floor is not None and one.first >= floor:
            continue
        if floor is not None and one.last > floor:
            share = (floor - one.first) / one.steps
            waited = None if one.waited is None else one.waited * share
            one = one._replace(
                last=floor, seconds=one.seconds * share, waited=waited, saving=one.saving * share, loss=None
            )
        kept.append(one)
        floor = one.first if floor is None else min(floor, one.first)
    return kept[::-1]
