"""A step over the stages of a pipeline: micro-batches go forward and back in the order of its schedule."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Optional

import torch

from .errors import Handed
from .sharding.local import norm, scale_down
from .sharding.pipeline import Staged, turns
from .step import Step

__all__ = ["PipelineStep"]


class PipelineStep(Step):
    """Takes steps with the stages of all processes; losses are the last one's to measure."""

    wrapped: Staged

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._agreed = False
        self._value: Optional[torch.Tensor] = None
        self._own_trained = [each for each in self._trained if not each.is_meta]
        self._shared_buffers = any(not each.is_meta for each in self.wrapped.buffers())

    def take(self, size: int) -> None:
        """One step over ``size`` samples of all copies of the pipeline, of which each stage takes its copy's."""
        rounds = self._whole if size == self._batch else self._rounds(size)
        staged, meter = self.wrapped, self.meter
        if self._shared_buffers:
            self.group.share_buffers(staged)
        began, known = time.perf_counter(), len(meter.counts)
        batches = [next(self.batches) for _ in rounds]
        meter.waited += time.perf_counter() - began
        losses: dict[int, Optional[torch.Tensor]] = {}
        for turn in turns(self.settings.pipeline_schedule, staged.number, staged.count, len(rounds)):
            if not turn.forward:
                staged.backward(losses.pop(turn.micro))
                continue
            self._value = None
            with contextlib.suppress(Handed):
                self._backward(batches[turn.micro], *rounds[turn.micro], size)
            losses[turn.micro] = self._value
        staged.finish()
        self.group.average_copies(self._own_trained, round(self.settings.bucket_cap_mb * (1 << 20)))
        if not self._agreed:
            self._agreed, self._counts = True, any(self.group.gather(self._counts))
        own = sum(1 for _, samples in rounds if samples)
        if self._counts:
            if staged.last and len(meter.counts) - known != own:
                self.task.refuse_mixed()
            self._weigh_by_count(own, size)
        self._call_update(rounds)

    def _back(self, value: torch.Tensor) -> None:
        """The backward pass comes when its turn is."""
        self._value = value

    def _clipped_norm(self) -> torch.Tensor:
        gradients = [each.grad for each in self._trained if each.grad is not None]
        square = norm(gradients, self.group.device).square()
        # Each copy of a stage has the same.
        total = (self.group.sum(square) / self.group.data.world_size).sqrt()
        scale_down(gradients, total, self.settings.clip_norm)
        return total
