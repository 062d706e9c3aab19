"""What a checkpoint of 1 GB costs the training that goes on beside it: step times around each save.

    python benchmarks/gpu/stall.py [--tiny] [--json FILE]

On a GPU each step's time is taken by events in its stream, on the CPU by the wall clock. The stall of a save is what
the steps from its beginning to its commit took beyond as many median steps; the goal is less than one such step.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import common
import torch

GOAL_STEPS = 1.0
# About 85 million parameters; with AdamW's two moments about 1 GB.
MODEL = {**common.LARGE, "width": 768, "heads": 12, "layers": 10}


class Marks:
    """A mark at the beginning of each step: an event that nobody waits for, or the time."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def __call__(self) -> None:
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
            event.record(torch.cuda.current_stream())
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        common.finish()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if torch.cuda.is_available():
            return [one.elapsed_time(two) / 1000 for one, two in pairs]
        return [two - one for one, two in pairs]


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    every, saves, batch = (400, 4, 16) if not tiny else (8, 2, 4)
    config = {**(common.TINY if tiny else MODEL), "samples": 512}
    values = {"batch_size": batch, "precision": "bf16", "keep": 1}
    values["max_steps"] = every * (saves + 1)
    # Saves at these steps and at no other: the bound on what a kill costs is far beyond the end.
    values |= {"keep_every": every, "checkpoint_steps": 4 * values["max_steps"]}
    marks = Marks()
    common.train_here(common.settings("Tokens", config, **values), folder / "run", marks)
    seconds = marks.seconds()
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    saved = {line["step"]: line["values"] for line in lines if line["kind"] == "checkpoint"}
    usual = statistics.median(seconds[every // 4 : every])
    found = []
    for number in range(1, saves + 1):
        values = saved[number * every]
        window = min(every - 1, math.ceil(1.2 * values["seconds"] / usual) + 5)
        # The save of step n begins after it, so in the time from the mark of step n to that of step n + 1.
        around = seconds[number * every - 1 : number * every - 1 + window]
        extra = sum(around) - usual * len(around)
        found.append(
            {
                "step": number * every,
                "bytes": values["bytes"],
                "seconds": values["seconds"],
                "steps_meanwhile": len(around),
                "stall_seconds": extra,
                "stall_steps": extra / usual,
                "longest_step_seconds": max(around),
            }
        )
    return {"goal_steps": GOAL_STEPS, "median_step_seconds": usual, "saves": found}


if __name__ == "__main__":
    common.main(__doc__, measure)
