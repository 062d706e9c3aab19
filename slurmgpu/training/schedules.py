"""The course of the learning rate: the task's own, or that of the settings, which knows the training's length."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Optional, Union

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

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
    task: Task, optimizer: torch.optim.Optimizer, cfg: Config, settings: Settings, total_steps: int
) -> Optional[LRScheduler]:
    """The task's schedule, or the settings'; None for a learning rate that stays."""
    if task.has("schedule"):
        return task.schedule(optimizer, cfg, total_steps)
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
