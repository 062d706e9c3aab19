"""The next size to try: up along the line of what was measured, then between what fitted and what did not.

Only sizes that save a micro-batch are tried: with 64 samples a step 64, 32, 22, 16, ..., because 63 at a time would take as
many as 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

__all__ = ["Tried", "largest", "next_size", "search"]

_MOST = 16
_FIRST = 2
"""Samples of the first try: BatchNorm takes no batch of one."""
_JUMP = 16
"""A try takes so many times the samples of the last one at most, because a line through two small sizes is rough."""
_NEAR = 16
"""Precision of the result: a size is known well enough when a sixteenth more does not fit."""


class Tried(NamedTuple):
    """A size, whether it fitted, and the bytes in use at its peak (None: not known, as after an error)."""

    size: int
    fits: bool
    peak: Optional[int] = None


def search(
    share: int, budget: Callable[[], int], attempt: Callable[[int], Tried], known: Sequence[Tried] = ()
) -> list[Tried]:
    """Return all that was tried, with what was known before; ``share`` is the largest size that is of use.

    ``budget``: bytes, which may be known better after a try.
    """
    tried = list(known)
    while len(tried) < _MOST + len(known):
        size = next_size(share, budget(), tried)
        if size is None:
            break
        tried.append(attempt(size))
    return tried


def largest(tried: Sequence[Tried]) -> int:
    """Return the largest size that fitted; 0 where none did."""
    return max((each.size for each in tried if each.fits), default=0)


def next_size(share: int, budget: int, tried: Sequence[Tried]) -> Optional[int]:
    """Return the size to try next; None where enough is known."""
    if not tried:
        return min(_FIRST, share)
    fit, full = largest(tried), min((each.size for each in tried if not each.fits), default=None)
    if not fit:
        return None if full == 1 or full is None else max(1, full // 2)
    if fit >= share:
        return None
    high = share if full is None else min(share, full - 1)
    if full is not None and full - fit <= max(1, fit // _NEAR):
        return None
    if -(-share // high) >= -(-share // fit):
        return None
    guess = max(_guess(budget, tried), fit + max(1, fit // _NEAR))
    if full is not None and not tried[-1].fits:
        guess = min(guess, (fit + full) // 2)  # the line has led too far
    rounds = min(-(-share // min(guess, high)), -(-share // fit) - 1)
    return -(-share // rounds)


def _guess(budget: int, tried: Sequence[Tried]) -> int:
    """Return the size at which the budget would be used up, by the two largest sizes that were measured."""
    measured = sorted((each.size, each.peak) for each in tried if each.fits and each.peak is not None)
    fit = largest(tried)
    if len(measured) < 2:
        return fit * 8
    (size, peak), (further, there) = measured[-2:]
    rise = (there - peak) / (further - size) if further > size else 0.0
    if rise <= 0:
        return fit * _JUMP
    return min(int(further + (budget - there) / rise), fit * _JUMP)
