"""Numbers as rows of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["bar", "chart"]

_BLOCKS = " ▁▂▃▄▅▆▇█"


def chart(
    values: Sequence[float],
    width: int,
    height: int = 1,
    *,
    low: float | None = None,
    high: float | None = None,
) -> list[str]:
    """Draw values over `width` columns and `height` rows, the first row on top; [] without values.

    Where there are more values than columns, a column is the mean of its share. `low` and `high` are the bounds of the
    scale, by default those of the values; what lies beyond is drawn at the edge.
    """
    if not values or width < 1:
        return []
    columns = _means(values, min(width, len(values)))
    bottom = min(columns) if low is None else low
    top = max(columns) if high is None else high
    steps = 8 * height
    # The least value is still seen: one eighth.
    levels = [
        max(1, min(steps, round((value - bottom) / (top - bottom) * steps))) if top > bottom else 1
        for value in columns
    ]
    return [
        "".join(_BLOCKS[max(0, min(8, level - 8 * row))] for level in levels)
        for row in range(height - 1, -1, -1)
    ]


def bar(part: int, whole: int, width: int) -> str:
    """How much of a whole is used, as a bar."""
    filled = round(part / whole * width) if whole else 0
    return "█" * filled + "░" * (width - filled)


def _means(values: Sequence[float], count: int) -> list[float]:
    edges = [len(values) * index // count for index in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges) if end > start]
