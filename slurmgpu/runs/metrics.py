"""Files of JSON rows that jobs write: metrics and samples. One may be huge, cut off anywhere, or no file at all.

They lie in a folder that may be somebody else's: nothing in them is trusted, and a pipe or device in a file's place is not
read.

The rows of metrics.jsonl, which a training of slurmgpu's own writes (docs/metrics.md).

How far a training of slurmgpu's own is, from the end of its metrics.jsonl.

The tasks of an array as trials of one training: how far each is, and how well it does.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from slurmgpu.models.run import JobStatus
import time
from collections.abc import Sequence
from itertools import islice
from slurmgpu.models.run import Progress
from collections.abc import Mapping

__all__ = ["FILE", "METRICS_SCHEMA", "MetricsRow", "Row", "Rows", "Trial", "folder_of", "losses", "metrics_at_end", "metrics_rows", "number", "opened", "part", "positive", "progress_of", "rows_at_end", "rows_in", "trial_of", "wait_share", "whole"]


Row = Mapping[str, object]
_LARGEST = 1 << 63
"""Whatever is measured is less: JSON has numbers such as 1e999, and whole ones of any length."""


class Rows:
    """A file of rows, open; `size` in bytes."""

    def __init__(self, file: int, size: int, schema: str) -> None:
        self._file, self.size, self._schema = file, size, schema

    def head(self, most: int) -> Iterator[Row]:
        """The rows in its first bytes; the last may be cut off, and is none then."""
        return rows_in(os.pread(self._file, most, 0), self._schema)

    def tail(self, most: int) -> Iterator[Row]:
        """The whole rows in its last bytes."""
        return rows_in(self.end(most), self._schema)

    def end(self, most: int) -> bytes:
        """Its last bytes, from the beginning of a line."""
        at = max(0, self.size - most)
        text = os.pread(self._file, most, at)
        return text if at == 0 else text[text.find(b"\n") + 1 :]


@contextlib.contextmanager
def opened(path: Path, schema: str) -> Iterator[Rows]:
    """A file of rows with this schema; OSError where there is none that can be read."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no file")
        yield Rows(file, found.st_size, schema)
    finally:
        os.close(file)


def rows_at_end(path: Path, schema: str, most: int) -> Iterator[Row]:
    """The whole rows in the last bytes of a file; none where there is no such file."""
    try:
        with opened(path, schema) as rows:
            text = rows.end(most)
    except OSError:
        return iter(())
    return rows_in(text, schema)


def rows_in(text: bytes, schema: str) -> Iterator[Row]:
    """The whole rows in a piece of a file; what is none is passed over: the last may still be being written."""
    for line in text.split(b"\n"):
        if not line.startswith(b"{"):
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.get("schema") == schema:
            yield row


def part(row: Row, key: str) -> Row:
    """An object in a row; empty where there is none."""
    found = row.get(key)
    return found if isinstance(found, dict) else {}


def number(value: object) -> float | None:
    """A number within reason; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_LARGEST < value < _LARGEST else None


def positive(value: object) -> float | None:
    """A number that is not negative."""
    found = number(value)
    return None if found is None or found < 0 else found


def whole(value: object) -> int | None:
    """A whole number that is not negative."""
    return value if type(value) is int and 0 <= value < _LARGEST else None

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
    return metrics_rows(rows_at_end(run_dir / FILE, METRICS_SCHEMA, most))


def losses(run_dir: Path) -> list[tuple[int, float]]:
    """Steps and their losses by the last mebibyte of the file, oldest first; [] where there are none."""
    trained = (row for row in metrics_at_end(run_dir) if row.kind == "train")
    return [(row.step, loss) for row in trained if (loss := number(row.values.get("loss"))) is not None]


def wait_share(values: Row) -> float | None:
    """Which part of a step went by with waiting for a batch, 0 to 1, by one row; None where that was not measured."""
    wait, step = (
        positive(values.get("data_wait_seconds")),
        positive(values.get("step_seconds")),
    )
    return None if wait is None or not step else min(1.0, wait / step)

_PROGRESS_TAIL = 64 * 1024
# As far back as the line of the newest start is looked for: with hundreds of ranks it is long.
_MOST = 16 * _PROGRESS_TAIL
_START = b'"kind": "start"'


def progress_of(run_dir: Path) -> Progress | None:
    """Read how far the training in a run directory (or an array task's folder in it) is; None without metrics.

    Only the end of the file is read, however long it is, and its first line where no newer start is near. Never raises for
    what is in it.
    """
    try:
        rows, total = _read(run_dir / FILE)
    except OSError:
        return None
    steps = [row for row in rows if row.kind in ("start", "train", "end")]
    if not steps:
        return None
    newest = steps[-1]
    # Of a start that has trained nothing yet, the loss is that of the start before it.
    trained = [row for row in steps if row.kind == "train"]
    values = trained[-1].values if trained else {}
    reason = newest.values.get("reason") if newest.kind == "end" else None
    return Progress(
        step=newest.step,
        total_steps=total,
        epoch=whole(values.get("epoch")),
        loss=number(values.get("loss")),
        samples_per_second=positive(values.get("samples_per_second")),
        eta_seconds=None if reason else _eta(newest.step, total, trained),
        age_seconds=max(0.0, time.time() - max(row.time or 0.0 for row in rows)),
        data_wait_share=wait_share(values),
        restart=newest.restart,
        ended=reason if isinstance(reason, str) else None,
    )


def _read(path: Path) -> tuple[list[MetricsRow], int | None]:
    """The rows at the end of the file, and the steps in all by that of the newest start."""
    with opened(path, METRICS_SCHEMA) as file:
        rows = list(metrics_rows(file.tail(_PROGRESS_TAIL)))
        starts = [row for row in rows if row.kind == "start"]
        if not starts and file.size > _PROGRESS_TAIL:
            before = file.end(_MOST)
            begins = before.rfind(b"\n", 0, max(0, before.rfind(_START))) + 1
            near = metrics_rows(rows_in(before[begins:].split(b"\n", 1)[0], METRICS_SCHEMA))
            starts = [row for row in near if row.kind == "start"] or [
                *islice(metrics_rows(file.head(_MOST)), 1)
            ]
    return rows, whole(starts[-1].values.get("total_steps")) if starts else None


def _eta(step: int, total: int | None, trained: Sequence[MetricsRow]) -> float | None:
    """Seconds until the last step at the pace of the lines at hand, with evaluations and checkpoints in it."""
    if total is None or not trained:
        return None
    alike = [row for row in trained if row.restart == trained[-1].restart]
    steps = alike[-1].step - alike[0].step
    seconds = (alike[-1].time or 0.0) - (alike[0].time or 0.0)
    pace = seconds / steps if steps > 0 and seconds > 0 else positive(alike[-1].values.get("step_seconds"))
    return None if pace is None else max(0, total - step) * pace

_TRIALS_TAIL = 1 << 16
_NO_RESULT = frozenset({"epoch", "seconds", "samples", "step"})
"""What a row of an evaluation has besides its results."""


class Trial(NamedTuple):
    """One task."""

    job: JobStatus
    progress: Progress | None
    results: Mapping[str, float]
    """What its last evaluation has found: ``loss``, and what its task measures."""


def trial_of(run_dir: Path, job: JobStatus) -> Trial:
    """What a task's files tell; some reads of 64 KiB. Never raises for what is in them."""
    folder = folder_of(run_dir, job)
    progress = progress_of(folder)
    results: dict[str, float] = {}
    try:
        with opened(folder / FILE, METRICS_SCHEMA) as file:
            evaluated = [row for row in metrics_rows(file.tail(_TRIALS_TAIL)) if row.kind == "eval"]
    except OSError:
        evaluated = []
    if evaluated:
        found = {name: number(value) for name, value in evaluated[-1].values.items()}
        results = {
            name: value for name, value in found.items() if value is not None and name not in _NO_RESULT
        }
    return Trial(job, progress, results)
