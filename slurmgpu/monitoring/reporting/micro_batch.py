"""Which micro-batch a training should take: what is tried next, and which of those that fitted is the best.

The batch of an optimizer step stays as it is, so that the training learns the same: a larger micro-batch is fewer of them
(accumulate). Searched as powers of two, as Lightning's batch size finder and Accelerate's find_executable_batch_size do;
each try is a job of its own, so that one that was full leaves nothing behind, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["MOST_TRIES", "Tried", "best", "next_try"]

MOST_TRIES = 5
FULLEST = 0.95
"""A GPU that was fuller than this has no room for what a probe does not see, and its micro-batch is not changed to."""
FASTER = 0.97
"""Another micro-batch is worth a change if its step takes no more than this share of the time."""


class Tried(NamedTuple):
    """What came of one ``accumulate``."""

    fits: bool
    step_seconds: float | None = None
    """Of an optimizer step; None: not measured."""
    memory_share: float | None = None
    """Of the fullest GPU's memory, what was in use at the peak; None: not measured."""


def next_try(first: int, parts: int, tried: Mapping[int, Tried]) -> int | None:
    """The ``accumulate`` that is tried next; None where enough is known.

    ``first`` is the job's own, and ``parts`` the samples that each process takes in an optimizer step: accumulate divides it.
    """
    if len(tried) >= MOST_TRIES:
        return None
    valid = [number for number in range(1, parts + 1) if parts % number == 0]
    fitting = [number for number, one in tried.items() if one.fits]
    if not tried:
        return first
    if not fitting:  # smaller micro-batches, until one fits
        return next((number for number in valid if number >= 2 * max(tried)), None)
    if not tried[first].fits:
        return None
    fewer = [number for number in valid if number <= min(tried) / 2]
    return max(fewer, default=None) if tried[min(tried)].fits else None


def best(first: int, tried: Mapping[int, Tried]) -> int | None:
    """The ``accumulate`` to take: the job's own, unless it did not fit or another is faster; None where none fitted."""
    fitting = {number: one for number, one in tried.items() if one.fits}
    roomy = {number: one for number, one in fitting.items() if (one.memory_share or 0.0) <= FULLEST}
    if first not in fitting:
        return min(roomy or fitting, default=None)
    own = fitting[first].step_seconds
    faster = {one.step_seconds: number for number, one in roomy.items() if one.step_seconds is not None}
    if own is None or not faster or min(faster) > FASTER * own:
        return first
    return faster[min(faster)]
