"""Losses and times since the last line of metrics; the losses stay on the device until they are read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Optional

import torch

from .group import Group
from .task import Scalar

__all__ = ["Meter", "Reading"]


class Reading:
    """What a line of metrics says, on its way from the device; ``values`` waits for it."""

    def __init__(self, step: int, totals: torch.Tensor, times: Mapping[str, float]) -> None:
        self.step = step
        self._times = times
        self._event: Optional[Any] = None
        if totals.is_cuda:
            self._totals = torch.empty_like(totals, device="cpu", pin_memory=True)
            self._totals.copy_(totals, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
            self._event.record()
        else:
            self._totals = totals

    def values(self) -> dict[str, float]:
        """The mean loss over all ranks, and this rank's times."""
        if self._event is not None:
            self._event.synchronize()
        total, count = self._totals.tolist()
        return {"loss": total / count if count else float("nan"), **self._times}


class Meter:
    """Collects without waiting for the device; the loop appends to it directly, for it is on a step's path."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.start()

    def start(self) -> None:
        """Begin anew, now."""
        self.losses: list[torch.Tensor] = []
        self.counts: list[Scalar] = []  # as long as losses when the task counts, empty when it gives means
        self.sizes: list[int] = []
        self.steps = 0
        self.samples = 0
        self.waited = 0.0
        self.saving = 0.0
        self._started = time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Leave out time that was spent on something else, such as an evaluation."""
        self._started += seconds

    def drop_last(self, count: int) -> None:
        """Forget the last losses: those of a step that was left out."""
        if count:
            del self.losses[-count:], self.counts[-count:], self.sizes[-count:]

    def totals(self) -> torch.Tensor:
        """Sum of losses and count of what they are the mean of, of this rank, in double precision."""
        device = self._group.device
        if not self.losses:
            return torch.zeros(2, dtype=torch.float64, device=device)
        values = torch.stack(self.losses).double()
        if self.counts:
            counts = [torch.as_tensor(each, dtype=torch.float64, device=device) for each in self.counts]
            return torch.stack([values.sum(), torch.stack(counts).sum()])
        if self.sizes[0] == self.sizes[-1]:
            count = self.sizes[0]
            return torch.stack([values.sum() * count, values.new_tensor(count * len(self.sizes))])
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=device)
        return torch.stack([(values * sizes).sum(), sizes.sum()])

    def read(self, step: int, facts: Mapping[str, float]) -> Reading:
        """End an interval: its mean loss over all ranks, this rank's times, and the facts given.

        Keys: ``loss``, ``samples_per_second`` (all ranks together), and of a mean step ``step_seconds``,
        ``data_wait_seconds`` and ``checkpoint_seconds``; on a GPU ``peak_memory_bytes``.
        """
        totals = self._group.sum(self.totals())
        now = time.perf_counter()
        seconds, steps = now - self._started, max(1, self.steps)
        times = {
            **facts,
            "samples_per_second": self.samples / seconds,
            "step_seconds": seconds / steps,
            "data_wait_seconds": self.waited / steps,
            "checkpoint_seconds": self.saving / steps,
        }
        if totals.is_cuda:
            times["peak_memory_bytes"] = torch.cuda.max_memory_allocated(totals.device)
        self.start()
        return Reading(step, totals, times)

    def state(self) -> dict[str, Any]:
        """The losses of the interval so far, so that a resumed run's next line has the same mean."""
        return {"losses": self.losses, "counts": self.counts, "sizes": self.sizes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the losses of an interval back; its times begin now."""
        device = self._group.device
        self.start()
        self.losses = [loss.to(device) for loss in state["losses"]]
        self.counts = [
            each.to(device) if isinstance(each, torch.Tensor) else each for each in state["counts"]
        ]
        self.sizes = list(state["sizes"])
