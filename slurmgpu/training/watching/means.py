"""Means by name over an interval of metrics, beside that of the loss; nothing waits for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import torch

from ..task import Scalar

__all__ = ["Means", "on_device"]


def on_device(value: Scalar, device: torch.device) -> torch.Tensor:
    """Return the number as a tensor in double precision; filled in there, because copying a number to a GPU waits."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, torch.float64)
    return torch.full((), float(value), dtype=torch.float64, device=device)


class Means:
    """Values with weights under names that are known from the start, so that all ranks add up the same ones."""

    def __init__(
        self, names: Sequence[str] = (), finite: Sequence[str] = (), summed: Sequence[str] = ()
    ) -> None:
        """``finite``: names whose values count only where they are finite; ``summed``: those whose means add up to the loss."""
        self.names, self._finite, self.summed = tuple(names), frozenset(finite), tuple(summed)
        self._values: dict[str, list[Any]] = {name: [] for name in names}
        self._weights: dict[str, list[Any]] = {name: [] for name in names}
        self._marked: dict[str, int] = {}

    def add(self, name: str, value: Scalar, weight: Scalar = 1.0) -> None:
        """Add a mean with the weight that it has among the others: numbers on the CPU, tensors on a GPU."""
        self.add_sum(name, value if weight == 1 else value * weight, weight)

    def add_sum(self, name: str, value: Scalar, weight: Scalar) -> None:
        """Add a sum over so many things."""
        self._values[name].append(value)
        self._weights[name].append(weight)

    def learn(self, name: str) -> None:
        """Take a name that was not known at the start."""
        if name not in self._values:
            self.names = (*self.names, name)
            self._values[name], self._weights[name] = [], []

    def sort(self) -> None:
        """Bring the names into an order that does not depend on when they were learned."""
        self.names = tuple(sorted(self.names))

    def counts(self) -> dict[str, int]:
        """Return how many values there are by name."""
        return {name: len(values) for name, values in self._values.items()}

    def mark(self) -> None:
        """Remember which values there are."""
        self._marked = self.counts()

    def go_back(self, to: Optional[Mapping[str, int]] = None) -> None:
        """Forget the values since the mark, or beyond other counts."""
        marked = self._marked if to is None else to
        for name, values in self._values.items():
            there = marked.get(name, 0)
            del values[there:], self._weights[name][there:]

    def drop_last(self, name: str, count: int) -> None:
        """Forget the last values of a name."""
        if count:
            del self._values[name][-count:], self._weights[name][-count:]

    @property
    def any(self) -> bool:
        """True if there is a value."""
        return any(self._values.values())

    def clear(self) -> None:
        """Begin anew."""
        for each in (*self._values.values(), *self._weights.values()):
            each.clear()

    def totals(self, device: torch.device) -> Union[torch.Tensor, list[float]]:
        """Sum and weight of each name, one after the other, in double precision."""
        pairs = [self._pair(name, device) for name in self.names]
        if device.type == "cpu":
            return [number for pair in pairs for number in pair.tolist()]
        return torch.cat(pairs) if pairs else torch.zeros(0, dtype=torch.float64, device=device)

    def _pair(self, name: str, device: torch.device) -> torch.Tensor:
        if not self._values[name]:
            return torch.zeros(2, dtype=torch.float64, device=device)
        values, weights = (_stacked(each, device) for each in (self._values[name], self._weights[name]))
        if name in self._finite:
            counts = torch.isfinite(values)
            values, weights = torch.where(counts, values, 0.0), weights * counts
        return torch.stack([values.sum(), weights.sum()])

    def read(self, totals: Sequence[float]) -> dict[str, float]:
        """Return the mean of each name that has one, from totals, which may be sums over ranks."""
        pairs = zip(self.names, totals[::2], totals[1::2])
        return {name: total / weight for name, total, weight in pairs if weight}

    def state(self) -> dict[str, object]:
        """Return what is open, for a checkpoint."""
        return {name: [self._values[name], self._weights[name]] for name in self.names}

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Put back what was open; a name that is not known any more is left out."""
        for name in self.names:
            for kept, saved in zip((self._values[name], self._weights[name]), state.get(name, ([], []))):
                kept += [each.to(device) if isinstance(each, torch.Tensor) else each for each in saved]


def _stacked(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Return the values in double precision on the device; copying numbers to a GPU would wait, filling them in does not."""
    if device.type == "cpu":
        return torch.tensor([float(each) for each in values], dtype=torch.float64)
    return torch.stack([on_device(each, device) for each in values])
