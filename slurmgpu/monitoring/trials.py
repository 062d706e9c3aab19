"""The tasks of an array as trials of one training: how far each is, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slurmgpu.models.run import JobStatus
from slurmgpu.models.samples import Progress
from slurmgpu.monitoring.json_rows import number, opened
from slurmgpu.monitoring.metrics import FILE, METRICS_SCHEMA, folder_of, metrics_rows
from slurmgpu.monitoring.progress import progress_of

__all__ = ["Trial", "trial_of"]

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
