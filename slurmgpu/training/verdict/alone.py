"""What calls others, without the time of those: operators, and lines of Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .intervals import Span, common, length
from .timeline import Timeline, Track

__all__ = ["Alone", "alone", "lines_in"]

_MOST = 3  # lines of Python
_BUILT_IN = "<built-in"


class Alone(NamedTuple):
    """A call, when it ran nothing that is recorded itself, and the name of what called it, if that is."""

    name: str
    caller: str
    seconds: float
    spans: list[Span]


def alone(track: Track, names: Sequence[str], window: list[Span]) -> list[Alone]:
    """Return each call of one thread, by itself."""
    ordered = track.inside(window[0][0], window[-1][1])
    spans: list[list[Span]] = [[] for _ in ordered]
    callers = [""] * len(ordered)
    stack: list[tuple[float, int]] = []  # end and number of those that are open
    at = 0.0
    for number, (start, end, _) in enumerate(ordered):
        at = _close(stack, spans, at, start)
        if stack:
            callers[number] = names[ordered[stack[-1][1]][2]]
            if start > at:
                spans[stack[-1][1]].append((at, start))
        at = start
        stack.append((min(end, stack[-1][0]) if stack else end, number))
    _close(stack, spans, at, float("inf"))
    return [
        Alone(names[name], caller, length(own), own)
        for (_, _, name), caller, own in zip(ordered, callers, spans)
    ]


def _close(stack: list[tuple[float, int]], spans: list[list[Span]], at: float, until: float) -> float:
    while stack and stack[-1][0] <= until:
        end, number = stack.pop()
        if end > at:
            spans[number].append((at, end))
            at = end
    return at


def lines_in(found: Timeline, spans: list[Span], steps: int) -> list[tuple[str, float]]:
    """Return the functions of Python that ran most of the time in these spans, and for how many seconds of a step."""
    track = found.functions.get(found.thread) if found.thread is not None else None
    if track is None or not spans:
        return []
    times: dict[str, float] = defaultdict(float)
    # What began before a step may still run in it.
    for each in alone(track, found.names, [(float("-inf"), float("inf"))]):
        inside = length(common(each.spans, spans))
        if inside:
            called = f"{each.name} in {each.caller}" if each.name.startswith(_BUILT_IN) else each.name
            times[called] += inside
    first = sorted(times.items(), key=lambda item: -item[1])[:_MOST]
    return [(name, seconds / steps / 1e6) for name, seconds in first]
