"""What a checkpoint of 1 GB costs the training that goes on beside it: step times around each save.

    python benchmarks/gpu/stall.py [--tiny] [--json FILE]

On a GPU each step's time is taken by events in its stream, on the CPU by the wall clock. The stall of a save is what
the steps from its beginning to its commit took beyond as many usual steps; usual is the median of as many steps just before
and just after these. The goal is less than one such step. The steps around each save are kept, too.
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
    found = []
    for number in range(1, saves + 1):
        values = saved[number * every]
        first = number * every - 1  # the save of step n begins after it, so before the mark of step n + 1
        before = statistics.median(seconds[first - every // 4 : first])
        window = min(every // 2, math.ceil(1.2 * values["seconds"] / before) + 5)
        around = seconds[first : first + window]
        beside = seconds[first - window : first] + seconds[first + window : first + 2 * window]
        usual = statistics.median(beside)
        extra = sum(around) - usual * len(around)
        found.append(
            {
                "step": number * every,
                "bytes": values["bytes"],
                "seconds": values["seconds"],
                "usual_step_seconds": usual,
                "steps_meanwhile": len(around),
                "stall_seconds": extra,
                "stall_steps": extra / usual,
                "longest_step_seconds": max(around),
                "step_milliseconds": [round(1e3 * each, 2) for each in around],
            }
        )
    return {"goal_steps": GOAL_STEPS, "saves": found}


if __name__ == "__main__":
    common.main(__doc__, measure)
