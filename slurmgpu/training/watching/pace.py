"""The rank for which the others wait: each measures what it does alone, and their watch threads compare.

A step ends on all ranks together, so its time does not tell. What a rank does before it meets the others in the
backward pass does: waiting for its batches, and the forward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch

from ..processes.group import Group, shared_by
from .meter import Meter
from .watch import Watch

__all__ = ["Forward", "Pace", "forward_timer"]

_PERIOD = 1.0  # seconds between two messages of a rank, times one more for each 64 ranks
_LEAST_STEPS = 2  # of which a message is the mean
_SEEN = 0.05  # of a step: a smaller difference is noise
_SLOW = 0.2  # of a step
_TIMES = 3  # comparisons in a row until it is said
_AGAIN = 600.0  # seconds until it is said again


class Forward:
    """Times forward passes: all of them on the CPU, on a GPU some, by events that are read late."""

    def __init__(self, device: torch.device, accumulate: int) -> None:
        self._accumulate = accumulate
        self._events: Optional[tuple[torch.cuda.Event, torch.cuda.Event]] = None
        if device.type == "cuda":
            event = torch.cuda.Event
            self._events = event(enable_timing=True), event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
        # Whose the events are: the training's while armed, the watch's thread's while on their way.
        self._armed, self._on_its_way = True, False
        self._open = False  # the pass under way is timed; the training's alone
        self._began = 0.0
        self._sampled: Optional[float] = None
        self.seconds = 0.0  # in all, on the CPU

    def begin(self) -> None:
        """The forward pass begins, again if need be: the last call counts."""
        if self._events is None:
            self._began = time.perf_counter()
        else:
            self._open = self._armed
            if self._open:
                self._events[0].record()

    def end(self) -> None:
        """The loss is there, or under way to be."""
        if self._events is None:
            self.seconds += time.perf_counter() - self._began
        elif self._open:  # and not what is armed: the watch's thread may have done that within this pass
            self._events[1].record()
            self._open = self._armed = False
            self._on_its_way = True  # last: from here on the events are not ours

    def of_a_step(self, seconds: float, steps: int) -> Optional[float]:
        """Seconds of a mean step; ``seconds`` and ``steps`` since the last call. From the watch's thread."""
        if self._events is None:
            return seconds / steps
        if self._on_its_way and self._events[1].query():  # type: ignore[no-untyped-call, unused-ignore]
            self._sampled = self._events[0].elapsed_time(self._events[1]) / 1000 * self._accumulate
            self._on_its_way = False
            self._armed = True  # last, too
        return self._sampled


def forward_timer(wrapped: torch.nn.Module, group: Group, accumulate: int) -> Optional[Forward]:
    """Return a timer for a model spread over ranks; None where there is nobody to compare with, or no honest measure."""
    inner = shared_by(wrapped)
    if inner is None:
        return None
    timer = Forward(group.device, accumulate)
    if next(inner.module.buffers(), None) is not None:
        if inner is not wrapped:
            return None  # a hook would break the compiled graph
        # DDP first shares the buffers, and that waits for rank 0: what counts begins behind it.
        inner.module.register_forward_pre_hook(lambda _module, _inputs: timer.begin())
    return timer


class Slowest(NamedTuple):
    """A rank, by how many seconds a step it is behind the others' median, and where."""

    rank: int
    seconds: float
    cause: str


class Pace:
    """This rank's message to the others, and on rank 0 what they add up to."""

    def __init__(
        self, group: Group, watch: Watch, meter: Meter, timer: Optional[Forward], hosts: Sequence[str]
    ) -> None:
        self._group, self._watch, self._meter, self._timer = group, watch, meter, timer
        self._hosts = hosts
        self._period = _PERIOD * (1 + group.ranks.world_size // 64)
        self._sent = (time.monotonic(), watch.step, 0.0, 0.0)
        self._number = 0
        self._compared: dict[int, int] = {}
        self._slowest: Optional[Slowest] = None
        self._step_seconds = 0.0
        self._in_a_row = 0
        self._suspect = self._said = -1
        self._said_at = -_AGAIN
        self._remark: Optional[str] = None
        self._lost = False

    def look(self) -> None:
        """Send and compare, when it is time to; from the watch's thread."""
        if not self._group.together or self._lost:
            return
        try:
            self._send()
            if self._group.ranks.first:
                self._compare()
        except Exception:  # the store is gone, and with it rank 0: the watch and the loop will say so
            self._lost = True

    def _send(self) -> None:
        when, step, waited, forward = self._sent
        now, steps = time.monotonic(), self._watch.step - step
        if now - when < self._period or steps < _LEAST_STEPS:
            return
        in_all = 0.0 if self._timer is None else self._timer.seconds
        measured = 0.0 if self._timer is None else self._timer.of_a_step(in_all - forward, steps)
        wait = (self._meter.waited - waited) / steps
        self._sent = now, step + steps, self._meter.waited, in_all
        if measured is not None:
            self._number += 1
            self._watch.channel.put(f"pace/{self._group.ranks.rank}", [self._number, wait, measured])

    def _compare(self) -> None:
        names = [f"pace/{rank}" for rank in range(self._group.ranks.world_size)]
        if self._compared.get(0) == self._number or not self._watch.channel.has(*names):
            return
        found = [self._watch.channel.get(name) for name in names]
        if any(self._compared.get(rank) == number for rank, (number, _, _) in enumerate(found)):
            return
        self._compared = {rank: number for rank, (number, _, _) in enumerate(found)}
        self._slowest = slowest([(wait, forward) for _, wait, forward in found])
        if self._step_seconds:
            self._suspect_one(self._slowest, self._slowest.seconds / self._step_seconds)

    def _suspect_one(self, found: Slowest, share: float) -> None:
        """Speak of a rank that stays behind."""
        same = found.rank == self._suspect and share >= _SLOW
        self._suspect, self._in_a_row = found.rank, (self._in_a_row if same else 0) + (share >= _SLOW)
        known = found.rank == self._said and time.monotonic() - self._said_at < _AGAIN
        if self._in_a_row < _TIMES or known:
            return
        self._said, self._said_at = found.rank, time.monotonic()
        self._remark = (
            f"warning: all wait for rank {found.rank} on {self._hosts[found.rank]}: "
            f"its steps take {100 * share:.0f} % longer than the other ranks', {found.cause}"
        )

    def values(self, step_seconds: float) -> dict[str, float]:
        """``slowest_rank`` and ``slowest_by`` (of a step) since the last call, where there is a difference."""
        self._step_seconds = step_seconds
        found, self._slowest = self._slowest, None
        if found is None or not step_seconds or found.seconds < _SEEN * step_seconds:
            return {}
        return {"slowest_rank": found.rank, "slowest_by": found.seconds / step_seconds}

    def remark(self) -> Optional[str]:
        """Return what people should know, once."""
        text, self._remark = self._remark, None
        return text


def slowest(times: Sequence[tuple[float, float]]) -> Slowest:
    """Return the rank with the most of its own to do, from each one's seconds of data wait and forward pass."""
    rank = max(range(len(times)), key=lambda each: sum(times[each]))
    others = [each for number, each in enumerate(times) if number != rank]
    waits, forwards = (statistics.median(part) for part in zip(*others))
    wait, forward = times[rank]
    seconds = wait + forward - statistics.median(map(sum, others))
    data = wait - waits > forward - forwards
    return Slowest(rank, seconds, "waiting for its data" if data else "in its forward pass")
