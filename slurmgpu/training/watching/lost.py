"""What an interruption has cost: the time until the training went on, and the steps that it takes again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional, TypedDict, cast

from ..files import read_json, write_json

__all__ = ["account"]

_BLOCK = 1 << 16


class _Line(TypedDict):
    """What is read here of a line of metrics."""

    kind: str
    restart: int
    step: int
    time: float
    values: Mapping[str, float]


def account(run_dir: Path, restart: int, first_step: int) -> Optional[dict[str, float]]:
    """The values of a ``restart`` line, from what earlier starts wrote; None when they never trained.

    Sums over all restarts are kept in ``state/lost.json``. Read from the end of ``metrics.jsonl``, no further back
    than the step from which this start goes on.
    """
    last: Optional[_Line] = None
    later: Optional[_Line] = None
    newest, seconds = first_step, 0.0
    for line in _backwards(run_dir / "metrics.jsonl"):
        if line["kind"] == "start" or line["restart"] >= restart:
            continue
        last = last or line
        if line["restart"] != last["restart"]:
            break  # what that start had lost, the one after it has counted
        if line["kind"] != "train":
            continue
        newest = max(newest, line["step"])
        if later is not None:
            seconds += _seconds(later, max(first_step, line["step"]))
        later = line
        if line["step"] <= first_step:
            break
    if last is None:
        return None
    if later is not None:
        seconds += _seconds(later, first_step)
    steps = newest - first_step
    down = max(0.0, time.time() - last["time"])
    file = run_dir / "state" / "lost.json"
    before = read_json(file)
    lost_seconds = float(before.get("lost_seconds", 0.0)) + down + seconds
    lost_steps = int(before.get("lost_steps", 0)) + steps
    with contextlib.suppress(OSError):  # a full disk costs the sums, not the training
        write_json(file, {"lost_seconds": lost_seconds, "lost_steps": lost_steps})
    return {
        "restarts": restart,
        "down_seconds": down,
        "repeated_steps": steps,
        "repeated_seconds": seconds,
        "lost_seconds": lost_seconds,
        "lost_steps": lost_steps,
    }


def _seconds(line: _Line, before: int) -> float:
    """The time of the steps that a line is the mean of, or of those of them that came after a step."""
    return line["values"]["step_seconds"] * max(0, line["step"] - before)


def _backwards(path: Path) -> Iterator[_Line]:
    """The lines of a file of JSON objects, the last one first; what is cut off is left out."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        place, rest = file.seek(0, os.SEEK_END), b""
        while place:
            size = min(_BLOCK, place)
            place -= size
            file.seek(place)
            first, *lines = (file.read(size) + rest).split(b"\n")
            rest = first
            if not place:
                lines.insert(0, first)
            for line in reversed(lines):
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict) and found.keys() >= {"kind", "restart", "step", "time"}:
                    yield cast("_Line", found)
