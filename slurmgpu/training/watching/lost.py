"""What an interruption has cost: the time until the training went on, and the steps that it takes again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Optional

from ..files import read_json, write_json
from ..formats.metrics import METRICS_FILE, METRICS_SCHEMA, MetricsRow, intervals_of, metrics_rows
from ..formats.rows import rows_from_end

__all__ = ["account"]


def account(run_dir: Path, restart: int, first_step: int) -> Optional[dict[str, float]]:
    """Return the values of a ``restart`` line, from what earlier starts wrote; None when they never trained.

    Sums over all restarts are kept in ``state/lost.json``. Read from the end of ``metrics.jsonl``, no further back
    than the step from which this start goes on.
    """
    last: Optional[MetricsRow] = None
    trained: list[MetricsRow] = []
    for row in metrics_rows(rows_from_end(run_dir / METRICS_FILE, METRICS_SCHEMA)):
        if row.kind == "start" or row.restart >= restart or row.time is None:
            continue
        last = last or row
        if row.restart != last.restart:
            break  # what that start had lost, the one after it has counted
        if row.kind == "train":
            trained.append(row)
            if row.step <= first_step:
                break
    if last is None or last.time is None:
        return None
    seconds = sum(one.seconds for one in intervals_of(reversed(trained), first_step))
    steps = max([first_step, *(row.step for row in trained)]) - first_step
    down = max(0.0, time.time() - last.time)
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
