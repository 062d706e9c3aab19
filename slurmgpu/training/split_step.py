"""A step of a model whose layers are split over processes: its scores may stay split, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .sharding.scores import over_pieces, refuse_other_losses, whole
from .step import Step

__all__ = ["SplitStep"]


class SplitStep(Step):
    """Takes steps whose losses may be taken over pieces of the scores."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loss = _whole_answers(self._loss)
        self._looked = False

    def _backward(self, batch: object, weight: float, samples: int, size: int) -> None:
        with over_pieces(self.task.path):
            super()._backward(batch, weight, samples, size)

    def _back(self, value: torch.Tensor) -> None:
        if not self._looked:  # the first time tells
            refuse_other_losses(value, self.task.path)
            self._looked = True
        super()._back(value)


def _whole_answers(
    loss: Callable[[torch.nn.Module, object], object],
) -> Callable[[torch.nn.Module, object], object]:
    def taken(model: torch.nn.Module, batch: object) -> object:
        return whole(loss(model, batch))

    return taken
