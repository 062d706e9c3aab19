"""How far a training of slurmgpu's own is, from the end of its metrics.jsonl (docs/metrics.md)."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmgpu.models.samples import Progress

__all__ = ["METRICS", "progress_of", "rows_of"]

METRICS = "metrics.jsonl"
_SCHEMA = "slurmgpu.metrics/1"
_TAIL = 64 * 1024
_MOST = (
    16 * _TAIL
)  # as far back as the line of the newest start is looked for: with hundreds of ranks it is long
_LARGEST = 1e300  # JSON's numbers have no bounds, floats have
_START = b'"kind": "start"'
Row = dict[str, object]


def progress_of(run_dir: Path) -> Progress | None:
    """Read how far the training in a run directory (or an array task's folder in it) is; None without metrics.

    Only the end of the file is read, however long it is, and its first line where no newer start is near. Never raises for
    what is in it.
    """
    try:
        rows, start = _read(run_dir / METRICS)
    except OSError:
        return None
    steps = [row for row in rows if row.get("kind") in ("start", "train", "end")]
    if not steps:
        return None
    newest = steps[-1]
    # Of a start that has trained nothing yet, the loss is that of the start before it.
    trained = [row for row in steps if row["kind"] == "train"]
    values = _values(trained[-1]) if trained else {}
    step, total = _whole(newest.get("step")) or 0, _whole(_values(start).get("total_steps"))
    reason = _values(newest).get("reason") if newest["kind"] == "end" else None
    return Progress(
        step=step,
        total_steps=total,
        epoch=_whole(values.get("epoch")),
        loss=_number(values.get("loss")),
        samples_per_second=_positive(values.get("samples_per_second")),
        eta_seconds=None if reason else _eta(step, total, trained),
        age_seconds=max(0.0, time.time() - max(_positive(row.get("time")) or 0.0 for row in rows)),
        data_wait_share=_wait_share(values),
        restart=_whole(newest.get("restart")) or 0,
        ended=reason if isinstance(reason, str) else None,
    )


def _read(path: Path) -> tuple[list[Row], Row]:
    """The rows at the end of the file, and that of the newest start; a pipe or device in its place is not read."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return [], {}
        at = max(0, found.st_size - _TAIL)
        tail = os.pread(file, _TAIL, at)
        rows = rows_of(tail if at == 0 else tail[tail.find(b"\n") + 1 :])
        starts = [row for row in rows if row.get("kind") == "start"]
        if not starts and at:
            back = max(0, found.st_size - _MOST)
            before = os.pread(file, _MOST, back)
            begins = before.rfind(b"\n", 0, max(0, before.rfind(_START))) + 1
            starts = [
                row for row in rows_of(before[begins:].split(b"\n", 1)[0]) if row.get("kind") == "start"
            ]
            starts = starts or rows_of(os.pread(file, _MOST, 0).split(b"\n", 1)[0])
    finally:
        os.close(file)
    return rows, starts[-1] if starts else {}


def rows_of(text: bytes) -> list[Row]:
    """The whole rows in a piece of metrics.jsonl; what is none is passed over."""
    rows = []
    for line in text.split(b"\n"):
        if not line.startswith(b"{"):
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last may still be being written
        if isinstance(row, dict) and row.get("schema") == _SCHEMA:
            rows.append(row)
    return rows


def _eta(step: int, total: int | None, trained: Sequence[Row]) -> float | None:
    """Seconds until the last step at the pace of the lines at hand, with evaluations and checkpoints in it."""
    if total is None or not trained:
        return None
    restart = trained[-1].get("restart")
    alike = [row for row in trained if row.get("restart") == restart]
    steps = (_whole(alike[-1].get("step")) or 0) - (_whole(alike[0].get("step")) or 0)
    seconds = (_positive(alike[-1].get("time")) or 0.0) - (_positive(alike[0].get("time")) or 0.0)
    pace = seconds / steps if steps > 0 and seconds > 0 else _positive(_values(alike[-1]).get("step_seconds"))
    return None if pace is None else max(0, total - step) * pace


def _wait_share(values: Mapping[str, object]) -> float | None:
    wait, step = _positive(values.get("data_wait_seconds")), _positive(values.get("step_seconds"))
    return None if wait is None or not step else min(1.0, wait / step)


def _values(row: Mapping[str, object]) -> Mapping[str, object]:
    values = row.get("values")
    return values if isinstance(values, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LARGEST else None


def _positive(value: object) -> float | None:
    number = _number(value)
    return None if number is None or number < 0 else number


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None
