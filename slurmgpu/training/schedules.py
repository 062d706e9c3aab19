"""The course of the learning rate: the task's own, or that of the settings, which knows the training's length."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from .errors import SettingsError
from .optimizers import Optimizer, Schedule, Schedules, Several
from .saving.snapshot import plain_state
from .settings import Config, Settings
from .task import Task

__all__ = ["EpochSchedule", "make_epoch_schedule", "make_schedule", "part", "warmup_steps"]


def part(amount: Union[float, str], whole: float) -> float:
    """Return an amount as it is, or as a share of the whole where it is written in percent."""
    return float(amount[:-1]) / 100 * whole if isinstance(amount, str) else amount


def warmup_steps(settings: Settings, total_steps: int) -> int:
    """Steps of the warm-up in a training of so many steps."""
    return round(part(settings.warmup_steps, total_steps))


def make_schedule(
    task: Task, optimizer: Optimizer, cfg: Config, settings: Settings, total_steps: int
) -> Optional[Schedule]:
    """Return the task's schedules, or the settings'; None for learning rates that stay."""
    if isinstance(optimizer, Several):
        named = optimizer.named
        if task.has("schedules"):
            own = task.schedules(named, cfg, total_steps)
        else:
            own = {name: _by_settings(each, settings, total_steps) for name, each in named.items()}
        found = {name: each for name, each in own.items() if each is not None}
        return Schedules(found) if found else None
    if task.has("schedule"):
        return task.schedule(optimizer, cfg, total_steps)
    return _by_settings(optimizer, settings, total_steps)


class EpochSchedule:
    """A schedule that moves on at the end of each epoch, or, with a metric, after each evaluation that is due."""

    def __init__(self, schedule: Any, metric: Optional[str]) -> None:
        self._schedule, self.metric = schedule, metric

    def end_epoch(self) -> None:
        """An epoch is through."""
        if self.metric is None:
            self._schedule.step()

    def look(self, values: Mapping[str, float]) -> None:
        """An evaluation is through.

        Raises:
            SettingsError: it lacks the metric.
        """
        if self.metric is not None:
            self.require_metric(values)
            self._schedule.step(values[self.metric])

    def require_metric(self, there: Iterable[str], hint: str = "") -> None:
        """Refuse a metric that is not among those of an evaluation."""
        names = list(there)
        if self.metric is not None and self.metric not in names:
            raise SettingsError(
                f"epoch_schedule of the task goes by {self.metric!r}, and the evaluation has "
                f"{', '.join(map(repr, names)) or 'no metrics'}: name one of these{hint}"
            )

    def state_dict(self) -> Optional[dict[str, object]]:
        """Return the schedule's state."""
        return plain_state(self._schedule)

    def load_state_dict(self, state: Optional[Mapping[str, Any]]) -> None:
        """Put the schedule's state back.

        Raises:
            ValueError: there is none.
        """
        if state is None:
            raise ValueError("it was saved without an epoch_schedule")
        self._schedule.load_state_dict(state)


def make_epoch_schedule(
    task: Task, optimizer: Optimizer, cfg: Config, settings: Settings, *, evaluated: bool
) -> Optional[EpochSchedule]:
    """Return the task's schedule by epochs, if it has one.

    Raises:
        SettingsError: the settings' schedule would undo it, or nothing is evaluated.
    """
    if not task.has("epoch_schedule"):
        return None
    if settings.schedule != "constant" or settings.warmup_steps not in (0, "0%"):
        raise SettingsError(
            f"schedule is {settings.schedule} and warmup_steps {settings.warmup_steps}, and the task has an epoch_schedule: "
            "each would set the learning rate anew; leave one of them out"
        )
    assert isinstance(optimizer, torch.optim.Optimizer)  # the task has been refused otherwise
    schedule, metric = task.epoch_schedule(optimizer, cfg)
    if metric is not None and not evaluated:
        raise SettingsError(
            f"epoch_schedule of the task goes by {metric!r} of evaluations, and there are none: return data for "
            "dataset(cfg, 'test')"
        )
    return EpochSchedule(schedule, metric)


def _by_settings(
    optimizer: torch.optim.Optimizer, settings: Settings, total_steps: int
) -> Optional[LRScheduler]:
    if settings.schedule == "constant" and not warmup_steps(settings, total_steps):
        return None
    factors = [_factor(settings, float(group["lr"]), total_steps) for group in optimizer.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LambdaLR(optimizer, factors)


def _factor(settings: Settings, rate: float, total_steps: int) -> Callable[[int], float]:
    """Return what the rate of a group of parameters is multiplied with in each step, counted from 0."""
    warmup, kind = warmup_steps(settings, total_steps), settings.schedule
    lowest = min(1.0, part(settings.min_lr, rate) / rate) if rate else 0.0
    falling = max(1, total_steps - warmup)
    if kind == "wsd":
        falling = min(falling, max(1, round(part(settings.decay_steps, total_steps))))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        left = max(0.0, min(1.0, (total_steps - step) / falling))
        if kind == "constant":
            return 1.0
        if kind == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * (1 - left)))
        return lowest + (1 - lowest) * left

    return factor
