"""The rows of metrics.jsonl, which a training of slurmgpu's own writes (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring import json_rows
from slurmgpu.monitoring.json_rows import Row, number, part, whole

__all__ = [
    "FILE",
    "METRICS_SCHEMA",
    "MetricsRow",
    "folder_of",
    "losses",
    "metrics_at_end",
    "metrics_rows",
    "wait_share",
]

FILE = "metrics.jsonl"
METRICS_SCHEMA = "slurmgpu.metrics/1"
_METRICS_TAIL = 1 << 20
"""Bytes from the end of a file: some thousand lines."""


class MetricsRow(NamedTuple):
    """One row; its values have not been looked at."""

    kind: str
    time: float | None
    """Seconds since 1970."""
    restart: int
    step: int
    values: Row


def folder_of(run_dir: Path, job: JobStatus) -> Path:
    """Where a job's training writes: of a task of an array, a folder of its own in the run directory."""
    task = job.array_tasks
    return run_dir / task if task is not None and task.isdecimal() else run_dir


def metrics_rows(rows: Iterable[Row]) -> Iterator[MetricsRow]:
    """Those rows that say what they are of."""
    for row in rows:
        kind, restart, step = row.get("kind"), whole(row.get("restart")), whole(row.get("step"))
        if isinstance(kind, str) and restart is not None and step is not None:
            yield MetricsRow(kind, number(row.get("time")), restart, step, part(row, "values"))


def metrics_at_end(run_dir: Path, most: int = _METRICS_TAIL) -> Iterator[MetricsRow]:
    """The rows in the last bytes of a run directory's file; none where there is no such file."""
    return metrics_rows(json_rows.rows_at_end(run_dir / FILE, METRICS_SCHEMA, most))


def losses(run_dir: Path) -> list[tuple[int, float]]:
    """Steps and their losses by the last mebibyte of the file, oldest first; [] where there are none."""
    trained = (row for row in metrics_at_end(run_dir) if row.kind == "train")
    return [(row.step, loss) for row in trained if (loss := number(row.values.get("loss"))) is not None]


def wait_share(values: Row) -> float | None:
    """Which part of a step went by with waiting for a batch, 0 to 1, by one row; None where that was not measured."""
    wait, step = (
        json_rows.positive(values.get("data_wait_seconds")),
        json_rows.positive(values.get("step_seconds")),
    )
    return None if wait is None or not step else min(1.0, wait / step)
