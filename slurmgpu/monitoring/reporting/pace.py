"""How long a whole training takes, from the metrics of a part of it: steps, evaluations, and what is beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurmgpu.monitoring.reporting.training import number_of

__all__ = ["ON_TIME", "Pace", "pace_of"]

Line = Mapping[str, object]

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
    """That the whole training has: so often it evaluates."""
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
        evaluations = max(self.epochs or 0, self.evaluations) * self.evaluation_seconds
        return around + self.total_steps * self.step_seconds + evaluations


def pace_of(lines: Sequence[Line]) -> Pace | None:
    """The pace of the newest start; None where none is there."""
    begins = [at for at, line in enumerate(lines) if line.get("kind") == "start"]
    if not begins:
        return None
    start, rest = lines[begins[-1]], lines[begins[-1] + 1 :]
    first = _whole(start.get("step")) or 0
    values, settings = _values(start), _part(_values(start), "settings")
    intervals = list(_intervals(rest, first))
    evaluated = [_seconds(line) for line in rest if line.get("kind") == "eval"]
    total = _whole(values.get("total_steps"))
    ends = [_values(line).get("reason") for line in rest if line.get("kind") == "end"]
    return Pace(
        steps=max((step for line in rest if (step := _whole(line.get("step"))) is not None), default=first)
        - first,
        total_steps=total,
        step_seconds=_mean(intervals[1:] or intervals),
        evaluations=len(evaluated),
        evaluation_seconds=sum(evaluated) / len(evaluated) if evaluated else 0.0,
        epochs=_epochs(total, settings, values),
        checkpoints=sum(line.get("kind") == "checkpoint" for line in rest),
        ended=next((str(one) for one in reversed(ends) if isinstance(one, str)), None),
    )


def _intervals(lines: Sequence[Line], first: int) -> Iterator[tuple[int, float]]:
    """Steps and seconds of a step of each line of metrics."""
    at = first
    for line in lines:
        step, seconds = _whole(line.get("step")), number_of(_values(line).get("step_seconds"))
        if line.get("kind") == "train" and step is not None and step > at and seconds is not None:
            yield step - at, max(0.0, seconds)
            at = step


def _mean(intervals: Sequence[tuple[int, float]]) -> float | None:
    steps = sum(steps for steps, _ in intervals)
    return sum(steps * seconds for steps, seconds in intervals) / steps if steps else None


def _epochs(total: int | None, settings: Line, values: Line) -> int | None:
    """Epochs of the whole, the one that a largest number of steps cuts off included."""
    batch, samples = _whole(settings.get("batch_size")), _whole(values.get("dataset_samples"))
    epochs = _whole(settings.get("epochs"))
    if total is None or not batch or not samples:
        return epochs
    by_steps = math.ceil(total * batch / samples)
    return by_steps if epochs is None else min(epochs, by_steps)


def _seconds(line: Line) -> float:
    return max(0.0, number_of(_values(line).get("seconds")) or 0.0)


def _values(line: Line) -> Line:
    return _part(line, "values")


def _part(line: Line, key: str) -> Line:
    part = line.get(key)
    return part if isinstance(part, dict) else {}


def _whole(value: object) -> int | None:
    number = number_of(value)
    return None if number is None else int(number)
