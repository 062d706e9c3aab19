"""How long a whole training takes, from the metrics of a part of it: steps, evaluations, and what is beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurmgpu.monitoring.json_rows import Row, number, part, positive, whole
from slurmgpu.monitoring.metrics import MetricsRow

__all__ = ["ON_TIME", "Pace", "pace_of"]

ON_TIME = "time"
"""What a training says at its end that was stopped by its time limit, in good order (docs/metrics.md)."""


@dataclass(frozen=True)
class Pace:
    """One start of a training; None is "not measured"."""

    steps: int
    """That it took, by its last line: the metrics of the last few steps may be missing."""
    total_steps: int | None
    step_seconds: float | None
    """Of a step, without those of the first line: in these the loader and the compiler begin."""
    evaluations: int
    evaluation_seconds: float
    """Of an evaluation, the mean; 0 where there was none."""
    epochs: int | None
    """That the whole training has."""
    evaluations_in_all: int
    """That the whole training has, by its settings."""
    checkpoints: int
    ended: str | None
    """Why it ended, in its own words."""

    def whole(self, elapsed: float) -> float | None:
        """Seconds that the whole takes, where this start took ``elapsed`` in all; None where that is not known.

        What is neither a step nor an evaluation (the start of Python, data that is read, the last checkpoint) comes once.
        """
        if self.step_seconds is None or self.total_steps is None:
            return None
        taken = self.steps * self.step_seconds + self.evaluations * self.evaluation_seconds
        around = max(0.0, elapsed - taken)
        evaluations = max(self.evaluations_in_all, self.evaluations) * self.evaluation_seconds
        return around + self.total_steps * self.step_seconds + evaluations


def pace_of(rows: Iterable[MetricsRow]) -> Pace | None:
    """The pace of the newest start; None where none is there."""
    all_rows = list(rows)
    begins = [at for at, row in enumerate(all_rows) if row.kind == "start"]
    if not begins:
        return None
    start, rest = all_rows[begins[-1]], all_rows[begins[-1] + 1 :]
    intervals = list(_intervals(rest, start.step))
    evaluated = [positive(row.values.get("seconds")) or 0.0 for row in rest if row.kind == "eval"]
    total = whole(start.values.get("total_steps"))
    ends = [row.values.get("reason") for row in rest if row.kind == "end"]
    return Pace(
        steps=max((row.step for row in rest), default=start.step) - start.step,
        total_steps=total,
        step_seconds=_mean(intervals[1:] or intervals),
        evaluations=len(evaluated),
        evaluation_seconds=sum(evaluated) / len(evaluated) if evaluated else 0.0,
        epochs=(epochs := _epochs(total, start.values)),
        evaluations_in_all=_evaluations(total, epochs, start.values),
        checkpoints=sum(row.kind == "checkpoint" for row in rest),
        ended=next((one for one in reversed(ends) if isinstance(one, str)), None),
    )


def _intervals(rows: Sequence[MetricsRow], first: int) -> Iterator[tuple[int, float]]:
    """Steps and seconds of a step of each row of metrics."""
    at = first
    for row in rows:
        seconds = number(row.values.get("step_seconds"))
        if row.kind == "train" and row.step > at and seconds is not None:
            yield row.step - at, max(0.0, seconds)
            at = row.step


def _mean(intervals: Sequence[tuple[int, float]]) -> float | None:
    steps = sum(steps for steps, _ in intervals)
    return sum(steps * seconds for steps, seconds in intervals) / steps if steps else None


def _epochs(total: int | None, values: Row) -> int | None:
    """Epochs of the whole, the one that a largest number of steps cuts off included."""
    settings = part(values, "settings")
    batch, samples = whole(settings.get("batch_size")), whole(values.get("dataset_samples"))
    epochs = whole(settings.get("epochs"))
    if total is None or not batch or not samples:
        return epochs
    by_steps = math.ceil(total * batch / samples)
    return by_steps if epochs is None else min(epochs, by_steps)


def _evaluations(total: int | None, epochs: int | None, values: Row) -> int:
    """How often the whole evaluates: every so many epochs, every so many steps, and once where both fall together."""
    settings = part(values, "settings")
    every = whole(settings.get("evaluate_every", 1))
    steps = whole(settings.get("evaluate_steps"))
    # The end always has one.
    by_epochs = math.ceil(epochs / every) if epochs and every else 1
    by_steps = (total - 1) // steps if total and steps else 0
    batch, samples = whole(settings.get("batch_size")), whole(values.get("dataset_samples"))
    both = math.lcm(steps, math.ceil(samples / batch) * every) if steps and every and batch and samples else 0
    return by_epochs + by_steps - ((total - 1) // both if total and both else 0)
