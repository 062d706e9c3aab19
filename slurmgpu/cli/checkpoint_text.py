"""How `checkpoint list` and `checkpoint verify` show what they found."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["print_table", "print_verdict", "size"]

_HEADER = ("TASK", "STEP", "EPOCH", "SAVED", "SIZE", "RANKS", "RESTART", "STATE", "NOTE")
_STATE = _HEADER.index("STATE")
_COLOURS = {"complete": "green", "intact": "green", "torn": "yellow", "damaged": "red", "set aside": "red"}


def print_table(rows: list[dict[str, object]]) -> None:
    """Print a line for each checkpoint, the task's column only for an array."""
    lines = [_HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first = 0 if any(row["task"] for row in rows) else 1
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        cells[-1] = line[-1]
        if not line[-1]:
            cells[_STATE:] = [line[_STATE]]
        cells[_STATE] = click.style(cells[_STATE], fg=_COLOURS.get(line[_STATE]))
        click.echo("  ".join(cells[first:]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    from slurmgpu.slurm.text import printable

    remarks = [
        "a resume takes it, if intact" if row["resume"] else "",
        "end of the training" if row["end_of_training"] else "",
        "kept for good" if row["kept_for_good"] else "",
        printable(row["problem"] or ""),
    ]
    return (
        *_known(row, "task", "step", "epoch"),
        _saved(row["time"]),
        "-" if row["bytes"] is None else size(row["bytes"]),
        *_known(row, "world_size", "restart"),
        row["state"],
        ", ".join(filter(None, remarks)),
    )


def _known(row: dict[str, object], *names: str) -> list[str]:
    return ["-" if row[name] is None else str(row[name]) for name in names]


def _saved(time: float | None) -> str:
    from datetime import datetime

    if time is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # no manifest of ours has such a time
        return "unknown"


def size(amount: int) -> str:
    """Bytes as people read them: 95.6 KiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount} B"


def print_verdict(row: dict[str, Any]) -> None:
    """Print what was found of one checkpoint."""
    from slurmgpu.slurm.text import printable

    where = f"task {row['task']}: " if row["task"] else ""
    state = click.style(row["state"], fg=_COLOURS[row["state"]])
    about = printable(row["problem"] or "") or f"{row['parts']} files, {size(row['bytes'])}"
    click.echo(f"{where}{row['path']}: {state}, {about}")
