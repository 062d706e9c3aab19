"""What a training tells of itself in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.training.formats.metrics import (
    METRICS_FILE,
    METRICS_SCHEMA,
    MetricsRow,
    intervals_of,
    kept_intervals,
    metrics_rows,
)
from slurmgpu.training.formats.rows import Row, opened, part, rows_in, whole
from slurmgpu.training.formats.run_files import ORDERLY

__all__ = ["Training", "read_rows", "read_training", "training_of"]

LARGEST = 64 << 20
"""Bytes that are read; of a longer file the end, where what counts stands."""


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
    stopped: bool = False
    """True if it stopped in good order, with everything saved."""
    saved_seconds: float = 0.0
    """Time of the steps that count and that the newest checkpoint has."""
    whole: bool = True
    """True if all of it was read, and is the job's alone."""


def read_training(run_dir: Path) -> Training | None:
    """Return the training in a run directory; None where there is none."""
    found = read_rows(run_dir)
    return None if found is None else training_of(found[0], whole_file=found[1])


def read_rows(run_dir: Path) -> tuple[Iterator[MetricsRow], bool] | None:
    """Return the rows of a run directory's metrics, and whether they are all; None where there is no such file."""
    try:
        with opened(run_dir / METRICS_FILE, METRICS_SCHEMA) as file:
            text, all_of_it = file.end(LARGEST), file.size <= LARGEST
    except OSError:
        return None
    return metrics_rows(rows_in(text, METRICS_SCHEMA)), all_of_it


def training_of(rows: Iterable[MetricsRow], *, whole_file: bool = True) -> Training | None:
    """Add the rows up."""
    rows = list(rows)
    intervals = list(intervals_of(rows))
    total: int | None = None
    stopped = False
    restart, at, saved = -1, 0, 0
    first_time = last_time = None
    resumed = 0
    begun: Row = {}
    for row in rows:
        if row.restart > restart:
            restart, first_time, resumed, at = row.restart, row.time, row.step, row.step
        last_time, stopped = row.time, False
        if row.kind == "start":
            at, resumed, begun = row.step, row.step, row.values
            total = whole(row.values.get("total_steps")) or total
        elif row.kind == "train" and row.step > at:
            at = row.step
        elif row.kind == "end":
            stopped = row.values.get("reason") in ORDERLY
        elif row.kind == "checkpoint":
            saved = row.step
    if restart < 0:
        return None
    kept = kept_intervals(intervals)
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
        world_size=whole(begun.get("world_size")),
        workers=whole(part(begun, "settings").get("workers")),
        stopped=stopped,
        saved_seconds=sum(one.seconds * one.share_up_to(saved) for one in kept),
        whole=whole_file,
    )
