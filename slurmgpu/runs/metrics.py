"""Progress of a training of slurmgpu's own, and the tasks of an array as trials of one, from the end of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from slurmgpu.models.run import JobStatus, Progress
from slurmgpu.training.formats.metrics import (
    METRICS_FILE,
    METRICS_SCHEMA,
    MetricsRow,
    metrics_at_end,
    metrics_rows,
)
from slurmgpu.training.formats.rows import number, opened, positive, rows_in, whole

__all__ = ["Trial", "curves", "folder_of", "losses", "progress_of", "trial_of"]

_TAIL = 64 * 1024
_MOST = 16 * _TAIL
"""As far back as the line of the newest start is looked for: with hundreds of ranks it is long."""
_START = b'"kind": "start"'
_MOST_POINTS = 2000
_NO_RESULT = frozenset({"epoch", "seconds", "samples", "step"})
"""Keys of an evaluation's row besides its results."""


def folder_of(run_dir: Path, job: JobStatus) -> Path:
    """Return where a job's training writes: of a task of an array, a folder of its own in the run directory."""
    task = job.array_tasks
    return run_dir / task if task is not None and task.isdecimal() else run_dir


def losses(run_dir: Path) -> list[tuple[int, float]]:
    """Steps and their losses by the last mebibyte of the file, oldest first; [] where there are none."""
    trained = (row for row in metrics_at_end(run_dir) if row.kind == "train")
    return [(row.step, loss) for row in trained if (loss := number(row.values.get("loss"))) is not None]


def curves(run_dir: Path, job: JobStatus) -> dict[str, object]:
    """Loss and samples per second by step, and the loss of evaluations: of each step, what the newest start says."""
    trained: dict[int, tuple[float | None, float | None]] = {}
    evaluated: dict[int, float] = {}
    for row in metrics_at_end(folder_of(run_dir, job)):
        loss = number(row.values.get("loss"))
        if row.kind == "train":
            trained[row.step] = (loss, number(row.values.get("samples_per_second")))
        elif row.kind == "eval" and loss is not None:
            evaluated[row.step] = loss
    steps = sorted(trained)[-_MOST_POINTS:]
    return {
        "steps": steps,
        "loss": [trained[step][0] for step in steps],
        "speed": [trained[step][1] for step in steps],
        "evals": sorted(evaluated.items()),
    }


def progress_of(run_dir: Path) -> Progress | None:
    """Read how far the training in a run directory (or an array task's folder in it) is; None without metrics.

    Only the end of the file is read, however long it is, and its first line where no newer start is near. Never raises for
    what is in it.
    """
    return _progress(*_read(run_dir))


def _read(run_dir: Path) -> tuple[list[MetricsRow], int | None]:
    """Return the rows at the end of the file, and the steps in all by that of the newest start; nothing without a file."""
    try:
        with opened(run_dir / METRICS_FILE, METRICS_SCHEMA) as file:
            rows = list(metrics_rows(file.tail(_TAIL)))
            starts = [row for row in rows if row.kind == "start"]
            if not starts and file.size > _TAIL:
                before = file.end(_MOST)
                begins = before.rfind(b"\n", 0, max(0, before.rfind(_START))) + 1
                near = metrics_rows(rows_in(before[begins:].split(b"\n", 1)[0], METRICS_SCHEMA))
                starts = [row for row in near if row.kind == "start"]
                starts = starts or list(islice(metrics_rows(file.head(_MOST)), 1))
    except OSError:
        return [], None
    return rows, whole(starts[-1].values.get("total_steps")) if starts else None


def _progress(rows: Sequence[MetricsRow], total: int | None) -> Progress | None:
    steps = [row for row in rows if row.kind in ("start", "train", "end")]
    if not steps:
        return None
    newest = steps[-1]
    # Of a start that has trained nothing yet, the loss is that of the start before it.
    trained = [row for row in steps if row.kind == "train"]
    values = trained[-1].values if trained else {}
    reason = newest.values.get("reason") if newest.kind == "end" else None
    eta = None
    if not reason and total is not None and trained:
        # At the pace of the lines at hand, with evaluations and checkpoints in it.
        alike = [row for row in trained if row.restart == trained[-1].restart]
        between = alike[-1].step - alike[0].step
        seconds = (alike[-1].time or 0.0) - (alike[0].time or 0.0)
        known = between > 0 and seconds > 0
        pace = seconds / between if known else positive(values.get("step_seconds"))
        eta = None if pace is None else max(0, total - newest.step) * pace
    wait, step = positive(values.get("data_wait_seconds")), positive(values.get("step_seconds"))
    return Progress(
        step=newest.step,
        total_steps=total,
        epoch=whole(values.get("epoch")),
        loss=number(values.get("loss")),
        samples_per_second=positive(values.get("samples_per_second")),
        eta_seconds=eta,
        age_seconds=max(0.0, time.time() - max(row.time or 0.0 for row in rows)),
        data_wait_share=None if wait is None or not step else min(1.0, wait / step),
        restart=newest.restart,
        ended=reason if isinstance(reason, str) else None,
    )


class Trial(NamedTuple):
    """One task."""

    job: JobStatus
    progress: Progress | None
    results: Mapping[str, float]
    """Results of its last evaluation: ``loss``, and the task's own measures."""


def trial_of(run_dir: Path, job: JobStatus) -> Trial:
    """Return what a task's files tell; some reads of 64 KiB. Never raises for what is in them."""
    rows, total = _read(folder_of(run_dir, job))
    evaluated = [row for row in rows if row.kind == "eval"]
    found = {name: number(value) for name, value in evaluated[-1].values.items()} if evaluated else {}
    results = {name: value for name, value in found.items() if value is not None and name not in _NO_RESULT}
    return Trial(job, _progress(rows, total), results)
