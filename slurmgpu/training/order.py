"""The order of samples: from the seed and the epoch alone, so that no number of processes or workers changes it.

The training runs through one endless row of samples, epoch after epoch, each epoch a permutation of its own.
A position in that row is the count of samples trained on so far, over all ranks. Steps of ``batch_size`` cut the
row without regard to the ends of epochs: an epoch's last samples share a step with the next one's first. So
every sample comes exactly once an epoch, none is repeated to fill up, and all steps have the same size but the
training's very last, which takes what is left (or is left out, with ``drop_last``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional, Union

import torch

__all__ = ["Order", "Piece", "Share", "mix", "sample_seed", "shares"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: consecutive multiples lie far apart


def mix(*numbers: int) -> int:
    """One well-mixed 64-bit number from several (SplitMix64's output function: Steele, Lea, Flood 2014)."""
    value = 0
    for number in numbers:
        value = (value + number + _GOLDEN) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value


def sample_seed(base: int, index: int) -> int:
    """Return the 32-bit seed of one sample's randomness; ``base`` is ``mix(seed, epoch)``."""
    return ((base + index * _GOLDEN) & _MASK) >> 32


# Plain tuples, because they are made in every step.
Piece = tuple[int, Union[torch.Tensor, list[int]], Optional[int]]
"""An epoch, samples of it in order, and the first one's place in it where a sample may come more than once.

The samples are on their way to a worker as a list, which is cheaper to send.
"""

Share = tuple[int, int, bool]
"""The share of one rank at a time: positions from, up to, and whether they count or are a stand-in."""


class Order:
    """The sample at each position; ``samples`` is the length of an epoch.

    Here each epoch is a shuffle of all samples; other orders are in ``orders.py``.
    """

    repeats = False  # whether a sample may come more than once in an epoch

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._seed = seed
        self._epoch, self._begin = -1, -samples
        self._permutation = torch.empty(0)

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Return the samples from one position up to another, epoch by epoch."""
        first = start - self._begin
        if first >= 0 and stop <= self._begin + self.samples:  # within the epoch at hand, as nearly always
            place = first if self.repeats else None
            return [(self._epoch, self._permutation[first : stop - self._begin], place)]
        found: list[Piece] = []
        while start < stop:
            epoch, offset = divmod(start, self.samples)
            if epoch != self._epoch:
                self._permutation = self.indices(epoch)
                self._epoch, self._begin = epoch, epoch * self.samples
            end = min(self.samples, offset + stop - start)
            found.append((epoch, self._permutation[offset:end], offset if self.repeats else None))
            start += end - offset
        return found

    def indices(self, epoch: int) -> torch.Tensor:
        """Return the samples of an epoch, in order."""
        return torch.randperm(self.samples, generator=self._generator(epoch))

    def mark(self, epoch: int) -> Optional[int]:
        """Return a number that tells whether an epoch's order is as it was; None where size and seed say so already."""
        return None

    def _generator(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix(self._seed, epoch) >> 1)


def shares(
    start: int, end: int, batch: int, micro: int, *, rank: int = 0, world_size: int = 1
) -> Iterator[Share]:
    """One rank's micro-batches from a position to the end of the training, in order.

    Every step takes up to ``batch`` positions, in rounds of one micro-batch (of up to ``micro``) per rank. Every
    rank has the same number of rounds: in a last round with fewer samples than ranks, a rank that gets none
    takes the round's first sample, and it does not count.
    """
    across = micro * world_size
    while start < end:
        stop = min(start + batch, end)
        for first in range(start, stop, across):
            size = min(across, stop - first)
            low, high = first + size * rank // world_size, first + size * (rank + 1) // world_size
            yield (low, high, True) if low < high else (first, first + 1, False)
        start = stop
