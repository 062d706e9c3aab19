"""The verdict on the profile that a training left in its run directory, and on traces from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.trust import read_regular
from slurmgpu.training.formats.metrics import MetricsRow, intervals_of, metrics_at_end
from slurmgpu.training.formats.rows import positive
from slurmgpu.training.verdict.judging import judge
from slurmgpu.training.verdict.judging import lines as verdict_lines
from slurmgpu.training.verdict.measuring import measured_in, measured_trace
from slurmgpu.training.verdict.trace import Unreadable

__all__ = ["Judged", "judge_run", "judge_trace", "of_training", "verdict_lines"]


FOLDER = "profile"
_METRICS = 1 << 24
"""Bytes from the end of metrics.jsonl: some ten thousand lines."""
_SETTINGS = 1 << 20


class Judged(NamedTuple):
    """A judged profile: its run, the verdict, and what could not be read."""

    path: Path
    verdict: Mapping[str, Any]
    notes: list[str]


def judge_run(run_dir: Path) -> Judged:
    """Return the verdict on a run.

    Raises:
        SlurmGpuError: it has no profile, or none that can be read.
    """
    folder = run_dir / FOLDER
    ranks, notes = measured_in(folder)
    if not ranks:
        told = "; ".join(notes) or "a training leaves one where it has profile: true"
        raise SlurmGpuError(
            f"there is no profile to read in {folder}: {told}",
            hint="set profile: true under train: (--set train.profile=true) and submit it again, or name a trace",
        )
    try:
        settings = json.loads(read_regular(run_dir / "train.json", _SETTINGS))
    except (OSError, ValueError, RecursionError):
        settings = {}
    whole = of_training(metrics_at_end(run_dir, _METRICS))
    try:
        verdict = judge(ranks, settings if isinstance(settings, dict) else {}, whole)
        return Judged(folder, verdict, notes)
    except (LookupError, TypeError, ValueError):
        raise SlurmGpuError(
            f"what the ranks left in {folder} is not as this version writes it",
            hint=f"remove rank-*.parts.json there, and it is read from the traces; or name one: {folder}/rank-0.trace.json.gz",
        ) from None


def judge_trace(path: Path) -> Judged:
    """Return the verdict on a single trace of torch's profiler.

    Raises:
        InvalidInput: it is none.
    """
    try:
        measured = measured_trace(path)
    except Unreadable as error:
        raise InvalidInput(
            f"{path} cannot be read as a trace of torch's profiler: {error}",
            hint="name a run, or a file that export_chrome_trace or tensorboard_trace_handler wrote",
        ) from None
    return Judged(path, judge({0: measured}, {}), [])


def of_training(rows: Iterable[MetricsRow]) -> dict[str, float]:
    """Return the shares of evaluating and saving of the time of all steps in these rows; empty where they tell of none."""
    rows = list(rows)
    intervals = list(intervals_of(rows))
    stepping = sum(one.seconds for one in intervals)
    saving = sum(one.saving for one in intervals)
    evaluating = sum(positive(row.values.get("seconds")) or 0.0 for row in rows if row.kind == "eval")
    seconds = stepping + evaluating
    return {"evaluating": evaluating / seconds, "saving": saving / seconds} if stepping else {}
