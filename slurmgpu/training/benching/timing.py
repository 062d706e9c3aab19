"""How long the parts of a step take: wall time on a CPU, CUDA's own events on a GPU."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

__all__ = ["Pace", "Spread", "spread", "timed"]


class Pace(NamedTuple):
    """How often something is measured: at least so many times, then until the time is up or it was ``most`` times."""

    warm_up: int = 3
    least: int = 5
    most: int = 50
    seconds: float = 5.0


class Spread(NamedTuple):
    """What came of several measurements, in their unit."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most."""
    return Spread(statistics.median(values), min(values), max(values))


class _Clock(Protocol):
    def mark(self) -> None: ...

    def laps(self) -> list[float]: ...


class _Wall:
    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def laps(self) -> list[float]:
        found = [after - before for before, after in zip(self._marks, self._marks[1:])]
        self._marks.clear()
        return found


class _Events:
    """On a GPU the host runs ahead: what is timed are marks in the stream."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def mark(self) -> None:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def laps(self) -> list[float]:
        torch.cuda.synchronize()
        found = [before.elapsed_time(after) / 1000 for before, after in zip(self._marks, self._marks[1:])]
        self._marks.clear()
        return found


def timed(parts: Sequence[Callable[[], None]], device: torch.device, pace: Pace) -> list[list[float]]:
    """Run all parts one after the other, again and again; for each round the seconds that each part took."""
    clock: _Clock = _Events() if device.type == "cuda" else _Wall()
    rounds: list[list[float]] = []
    ends = 0.0
    for number in itertools.count():
        if number == pace.warm_up:
            ends = time.perf_counter() + pace.seconds
        clock.mark()
        for part in parts:
            part()
            clock.mark()
        laps = clock.laps()
        if number >= pace.warm_up:
            rounds.append(laps)
        if len(rounds) >= pace.most or (len(rounds) >= pace.least and time.perf_counter() >= ends):
            break
    return rounds
