"""The phases of a training: waiting for data, in a pass, saving. Told to a profile, and to nsys by NVTX ranges.

Only where one of these is asked for; then the callables of a step are wrapped, for as long as it needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Optional, TypeVar

import torch
from torch.profiler import record_function

from ..settings import Settings
from .console import Console

__all__ = ["STEP", "Each", "Lap", "Phases", "phases_for"]

R = TypeVar("R")
T = TypeVar("T")

STEP = "step"
"""The border between two steps, among the phases' own."""
_PREFIX = "slurmgpu."  # slurmgpu.training.verdict.trace looks for it in a trace


class Lap(NamedTuple):
    """From one border to the next: seconds that passed, and those in which this thread had a CPU (0 on a GPU)."""

    name: str
    seconds: float
    busy: float


class Phases:
    """The borders between phases, of which one at most is open; seen by whoever has asked for it."""

    def __init__(self, device: torch.device, ranges: bool = False) -> None:
        self._on_gpu = device.type == "cuda"
        self._device = device
        self.ranges = ranges
        self.timing = False  # whether borders are kept
        self.marking = False  # whether phases are marked in the trace that is being recorded
        self._borders: list[tuple[str, Any]] = []
        self._open: Optional[Any] = None
        self._in_range = False

    def go(self, name: str) -> None:
        """The phase under way has ended, and this one has begun; none: ''."""
        if self.timing:
            self._borders.append((name, self._now()))
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if self._in_range:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call, unused-ignore]
            self._in_range = False
        if name and self.marking:
            self._open = opened = record_function(_PREFIX + name)
            opened.__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        if name and self.ranges:
            torch.cuda.nvtx.range_push(_PREFIX + name)  # type: ignore[no-untyped-call, unused-ignore]
            self._in_range = True

    def _now(self) -> Any:
        """On a GPU an event in its stream, which nobody waits for; on the CPU the time and this thread's own."""
        if not self._on_gpu:
            return time.perf_counter(), time.thread_time()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def step(self) -> None:
        """The border between two timed steps."""
        self._borders.append((STEP, self._now()))

    def times(self) -> list[Lap]:
        """Return what was timed: each phase, ``STEP`` at the borders. The GPU has come to the last one."""
        borders, self._borders = self._borders, []
        following = borders[1:]
        return [self._lap(name, one, two) for (name, one), (_, two) in zip(borders, following)]

    def _lap(self, name: str, one: Any, two: Any) -> Lap:
        if self._on_gpu:
            return Lap(name, float(one.elapsed_time(two) / 1000), 0.0)
        return Lap(name, two[0] - one[0], two[1] - one[1])

    def during(self, name: str, act: Callable[..., R], then: str = "") -> Callable[..., R]:
        """Return the same callable, in a phase, which another may follow."""

        def marked(*arguments: object) -> R:
            self.go(name)
            try:
                return act(*arguments)
            finally:
                self.go(then)

        return marked


def phases_for(settings: Settings, device: torch.device, console: Console) -> Phases:
    """Those of a training with these settings."""
    if settings.nvtx and device.type != "cuda":
        console.say("note: nvtx does nothing on CPUs")
    return Phases(device, ranges=settings.nvtx and device.type == "cuda")


class Each(Generic[T]):
    """An iterator whose every ``next`` is a phase."""

    def __init__(self, inner: Iterator[T], phases: Phases, name: str) -> None:
        self.inner = inner
        self._next = phases.during(name, inner.__next__)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._next()
