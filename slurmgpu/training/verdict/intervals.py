"""Sets of time: sorted lists of (start, end) that neither touch nor overlap."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Span", "common", "length", "longer", "merged", "without"]

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return what any of the spans covers."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Return how long all of them are together."""
    return sum(end - start for start, end in spans)


def common(one: list[Span], two: list[Span]) -> list[Span]:
    """Return what both cover."""
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(two):
        start, end = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(one: list[Span], two: list[Span]) -> list[Span]:
    """Return what the first covers and the second does not."""
    found: list[Span] = []
    j = 0
    for start, end in one:
        while j < len(two) and two[j][1] <= start:
            j += 1
        k = j
        while k < len(two) and two[k][0] < end:
            if two[k][0] > start:
                found.append((start, two[k][0]))
            start = max(start, two[k][1])
            k += 1
        if start < end:
            found.append((start, end))
    return found


def longer(spans: Iterable[Span], than: float) -> list[Span]:
    """Those of at least this length."""
    return [(start, end) for start, end in spans if end - start >= than]
