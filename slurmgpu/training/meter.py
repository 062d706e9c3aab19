"""Losses and times since the last time they were read; the losses stay on the device until then."""

from __future__ import annotations

import time
from typing import Any

import torch

from .group import Group
from .task import Loss

__all__ = ["Meter"]


class Meter:
    """Adds up without waiting for the device; ``read`` is the only place that does."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.start()

    def start(self) -> None:
        """Begin anew, now."""
        self.steps = 0
        self.samples = 0
        self.waited = 0.0
        self._sum: Any = 0.0
        self._count: Any = 0.0
        self._started = time.perf_counter()

    def add(self, loss: Loss, samples: int) -> None:
        """Count one micro-batch."""
        value = loss.value.detach()
        self._sum = self._sum + (value * samples if loss.counted is None else value)
        self._count = self._count + (samples if loss.counted is None else loss.counted)
        self.samples += samples

    def end_step(self) -> None:
        """Count one optimizer step."""
        self.steps += 1

    def read(self) -> dict[str, float]:
        """The mean loss over all ranks and this rank's times, since the last reading.

        Keys: ``loss``, ``samples_per_second`` (all ranks together), ``step_seconds``, ``data_wait_seconds``
        (of a step), and on a GPU ``peak_memory_bytes``.
        """
        device = self._group.device
        both = [
            torch.as_tensor(each, dtype=torch.float64, device=device) for each in (self._sum, self._count)
        ]
        total, count = self._group.sum(torch.stack(both)).tolist()
        seconds = time.perf_counter() - self._started  # after the losses are there: the device has caught up
        values = {
            "loss": total / count if count else float("nan"),
            "samples_per_second": self.samples * self._group.ranks.world_size / seconds,
            "step_seconds": seconds / self.steps,
            "data_wait_seconds": self.waited / self.steps,
        }
        if device.type == "cuda":
            values["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)
        self.start()
        return values
