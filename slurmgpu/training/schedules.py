"""The course of the learning rate: the task's own, or that of the settings, which knows the training's length."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Optional, Union

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from .optimizers import Optimizer, Schedule, Schedules, Several
from .settings import Config, Settings
from .task import Task

__all__ = ["make_schedule", "part", "warmup_steps"]


def part(amount: Union[float, str], whole: float) -> float:
    """An amount as it is, or as a share of the whole where it is written in percent."""
    return float(amount[:-1]) / 100 * whole if isinstance(amount, str) else amount


def warmup_steps(settings: Settings, total_steps: int) -> int:
    """Steps of the warm-up in a training of so many steps."""
    return round(part(settings.warmup_steps, total_steps))


def make_schedule(
    task: Task, optimizer: Optimizer, cfg: Config, settings: Settings, total_steps: int
) -> Optional[Schedule]:
    """The task's schedules, or the settings'; None for learning rates that stay."""
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
    """What the rate of a group of parameters is multiplied with in each step, counted from 0."""
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
