"""The rows that were measured, read from the file that the measuring process writes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slurmgpu.monitoring.json_rows import Row, opened, part, positive

__all__ = ["SCHEMA", "Results", "median", "read"]

SCHEMA = "slurmgpu.bench/1"
_LARGEST_RESULTS = 1 << 21
"""Bytes: several times what the longest bench writes; what is beyond it was not written by one, and is left unread."""


class Results(NamedTuple):
    """What one process measured on one machine."""

    machine: Row
    rows: list[Row]
    whole: bool
    """Whether it came to its end."""


def read(path: Path) -> Results:
    """The rows of a file; none of one that is not there yet."""
    machine: Row = {}
    rows: list[Row] = []
    whole = False
    try:
        with opened(path, SCHEMA) as file:
            found = list(file.head(_LARGEST_RESULTS))
    except OSError:
        found = []
    for row in found:
        kind = row.get("kind")
        if kind == "machine":
            machine, rows, whole = (
                row,
                [],
                False,
            )  # a job that Slurm started again measures from the beginning
        elif kind == "end":
            whole = True
        else:
            rows.append(row)
    return Results(machine, rows, whole)


def median(row: Row, key: str) -> float | None:
    """The median of what was measured several times; None where it was not."""
    return positive(part(row, key).get("median"))
