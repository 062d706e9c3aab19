"""Tables of text: rows of cells as lines, their columns below each other."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned"]

_LONG = 48
"""Characters of a cell, such as a job's name, for which a column is made wide though most of its cells are shorter."""


def aligned(rows: Sequence[Sequence[str]], *, right: int | None = None, indent: str = "") -> list[str]:
    """Return rows of cells as lines, the columns from ``right`` on flush right; very long cells move only their own rows."""
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        widths = sorted(map(len, column))
        common = [width for width in widths if width <= _LONG]
        width = common[-1] if len(common) > len(widths) / 2 else widths[-1]
        flush = str.ljust if right is None or number < right else str.rjust
        columns.append([flush(cell, width) for cell in column])
    return [(indent + "  ".join(row)).rstrip() for row in zip(*columns, strict=True)]
