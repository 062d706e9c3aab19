"""How far a training of slurmgpu's own is, from the end of its metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from slurmgpu.models.samples import Progress
from slurmgpu.monitoring.json_rows import number, opened, positive, rows_in, whole
from slurmgpu.monitoring.metrics import FILE, METRICS_SCHEMA, MetricsRow, metrics_rows, wait_share

__all__ = ["progress_of"]

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
