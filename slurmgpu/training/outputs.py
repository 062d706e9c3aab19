"""What a task's ``evaluate`` gives for each sample, kept until all of a test set is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import torch

from .batches import own_copy
from .errors import TrainingError
from .task import describe_value

__all__ = ["Outputs", "Rows", "in_order"]

Rows = dict[str, Union[torch.Tensor, list[Any]]]
"""By name a tensor with a row for each sample, or a list with an entry for each."""


class Outputs:
    """Collects a rank's outputs on the CPU, batch by batch."""

    def __init__(self) -> None:
        self._batches: dict[str, list[Any]] = {}
        self._fresh: Mapping[str, Any] = {}

    def add(self, rows: Mapping[str, Any]) -> None:
        """Take those of a batch; they leave the GPU when the next batch has been started, so that it has work."""
        self._settle()
        self._fresh = rows

    def _settle(self) -> None:
        for name, value in self._fresh.items():
            if not isinstance(value, (torch.Tensor, list)):
                value = torch.as_tensor(value)  # an array of numpy
            self._batches.setdefault(name, []).append(own_copy(value))
        self._fresh = {}

    def whole(self) -> Rows:
        """Return all rows, in the order they came; nothing is kept."""
        self._settle()
        return {name: _joined(name, self._batches.pop(name)) for name in list(self._batches)}


def _joined(name: str, batches: list[Any]) -> Union[torch.Tensor, list[Any]]:
    if all(isinstance(each, list) for each in batches):
        return [row for batch in batches for row in batch]
    try:
        return torch.cat(batches)
    except (RuntimeError, TypeError) as error:
        raise _misfit(name, batches) from error


def in_order(name: str, parts: Sequence[Any], samples: int) -> Union[torch.Tensor, list[Any]]:
    """Return the rows of all ranks as the samples lie in the test set: the ranks take turns, sample by sample."""
    there = parts[:samples]  # further ranks have no sample
    first = there[0]
    if isinstance(first, list) and all(isinstance(part, list) for part in there):
        listed: list[Any] = [None] * samples
        for rank, part in enumerate(there):
            listed[rank :: len(parts)] = part
        return listed
    if not isinstance(first, torch.Tensor) or any(_kind(part) != _kind(first) for part in there):
        raise _misfit(name, there)
    whole = first.new_empty((samples, *first.shape[1:]))
    for rank, part in enumerate(there):
        whole[rank :: len(parts)] = part
    return whole


def _kind(part: object) -> Optional[tuple[object, ...]]:
    return (part.dtype, part.shape[1:]) if isinstance(part, torch.Tensor) else None


def _misfit(name: str, parts: Sequence[object]) -> TrainingError:
    kinds = list(dict.fromkeys(map(describe_value, parts)))
    return TrainingError(
        f"the outputs {name!r} of evaluate do not fit together: {', '.join(kinds[:3])}; "
        "give all batches tensors that differ in their first dimension alone, or a list with an entry for each sample"
    )
