"""The judgement of evaluations: the best step so far, and whether the training still gets better.

Both are the same on every rank, because the values are, and are saved with each checkpoint: a resumed training judges as
one that was never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from .errors import SettingsError
from .formats.checkpoint import is_of_metric, is_spent
from .settings import Settings

__all__ = ["Judge"]


def _gain(value: float, known: Optional[Mapping[str, Any]], mode: str) -> float:
    """By how much a value is better than the one that is known; what is not finite never is."""
    if not math.isfinite(value):
        return -math.inf
    before: Optional[float] = None if known is None else known["value"]
    if before is None:
        return math.inf
    return value - before if mode == "max" else before - value


class Judge:
    """Judges each evaluation of a training by ``best`` and ``early_stop``; without these it does nothing."""

    def __init__(self, settings: Settings) -> None:
        self._best, self._stop = settings.best, settings.early_stop
        self._wanted = {"best": self._best, "early_stop": self._stop}
        # Metric, mode, step and value of the best evaluation whose checkpoint is kept; and what it was before that one.
        self._record: Optional[Mapping[str, Any]] = None
        self._earlier: Optional[Mapping[str, Any]] = None
        self._unsaved: Optional[Mapping[str, Any]] = None
        # Metric, mode, step and value of the last evaluation that was better, and the evaluations since.
        self._patience: Optional[Mapping[str, Any]] = None

    def require_evaluations(self, there_are: bool) -> None:
        """Refuse to judge what is never evaluated."""
        for name, wanted in self._wanted.items():
            if wanted is not None and not there_are:
                raise SettingsError(
                    f"{name} judges evaluations, and this task has none: return data for dataset(cfg, 'test'), or leave "
                    f"{name} out"
                )

    @property
    def metrics(self) -> set[str]:
        """The metrics that it goes by."""
        return {wanted["metric"] for wanted in self._wanted.values() if wanted is not None}

    def require_metrics(self, names: Iterable[str], hint: str = "") -> None:
        """Refuse a metric that is not among those of an evaluation."""
        there = list(names)
        for name, wanted in self._wanted.items():
            if wanted is not None and wanted["metric"] not in there:
                raise SettingsError(
                    f"{name}.metric is {wanted['metric']!r}, and the evaluation has "
                    f"{', '.join(map(repr, there)) or 'no metrics'}: name one of these{hint}"
                )

    def look(self, step: int, values: Mapping[str, float]) -> None:
        """Judge the evaluation of a step.

        Raises:
            SettingsError: it lacks the metric.
        """
        self.require_metrics(values)
        if self._best is not None:
            value, record = values[self._best["metric"]], self._record
            if _gain(value, record, self._best["mode"]) > 0:
                self._earlier, self._record = record, _entry(self._best, step, value)
        if self._stop is not None:
            value, before = values[self._stop["metric"]], self._patience
            gain = _gain(value, before, self._stop["mode"])
            if gain > self._stop.get("min_delta", 0.0):
                self._patience = {**_entry(self._stop, step, value), "since": 0}
            else:
                known = before or {**_entry(self._stop, step, None), "since": 0}
                self._patience = {**known, "since": known["since"] + 1}

    @property
    def spent(self) -> bool:
        """True if the training ends, because it has not got better for long enough."""
        return self._stop is not None and is_spent(self._patience, self._stop)

    def is_best(self, step: int) -> bool:
        """Return True if this step is the best one so far, and is to be kept."""
        return self._best is not None and self._record is not None and self._record["step"] == step

    def facts(self, step: int) -> dict[str, object]:
        """Return what the manifest of a step says."""
        if self._unsaved is not None and self._unsaved["step"] == step:  # once more
            self._earlier, self._record, self._unsaved = self._record, self._unsaved, None
        return {"best": self._record, "early_stop": self._patience}

    def failed(self, step: int) -> None:
        """The checkpoint of a step could not be written: as the best one, the one before it counts."""
        if self.is_best(step):
            self._unsaved, self._record = self._record, self._earlier
        elif self._earlier is not None and self._earlier["step"] == step:
            self._earlier = None

    def restore(self, manifest: Mapping[str, Any]) -> list[str]:
        """Go on from what a manifest says; what to say of a metric that is another one now."""
        record, patience = manifest.get("best"), manifest.get("early_stop")
        notes = [
            f"{name} is of {wanted['metric']} ({wanted['mode']}) now, and was of {saved['metric']} ({saved['mode']}): it "
            "begins anew"
            for (name, wanted), saved in zip(self._wanted.items(), (record, patience))
            if saved and wanted and not is_of_metric(saved, wanted)
        ]
        # Without the setting the best one of earlier starts is still kept.
        self._record = record if self._best is None or is_of_metric(record, self._best) else None
        self._patience = patience if is_of_metric(patience, self._stop) else None
        return notes

    @property
    def kept(self) -> Optional[int]:
        """The step of the best checkpoint, if there is one."""
        return None if self._record is None else self._record["step"]

    def lose(self) -> None:
        """The best checkpoint is gone: the next evaluation is the best one."""
        self._record = None

    def describe_end(self) -> str:
        """Return why the training ends early."""
        assert self._stop is not None
        assert self._patience is not None
        metric, known = self._stop["metric"], self._patience
        times = f"{known['since']} evaluation{'' if known['since'] == 1 else 's'}"
        if known["value"] is None:
            return f"stopped early: {metric} was not finite in {times}"
        return (
            f"stopped early: no better {metric} in {times}, best {known['value']:.4g} at step {known['step']}"
        )


def _entry(wanted: Mapping[str, Any], step: int, value: Optional[float]) -> dict[str, Any]:
    return {"metric": wanted["metric"], "mode": wanted["mode"], "step": step, "value": value}
