"""From a trace, and from steps that were timed without a profiler, to the parts of a mean step; they add up to the step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

from .splitting import split_cpu, split_gpu
from .trace import Timeline, Unreadable, common, events, length, merged, timeline

__all__ = ["PARTS", "SCHEMA", "Queue", "Timed", "measure", "measured_in", "measured_trace"]

SCHEMA = "slurmgpu.profile-parts/1"
PARTS = (
    "data",
    "copying",
    "computing",
    "small",
    "communicating",
    "outside",
    "queued",
    "evaluating",
    "saving",
)
"""Parts into which a step's time is split."""

_RECORDING = 5e-6  # seconds that recording adds to an operator, at most
_AT_LEAST = 2  # evaluations or saves among the timed steps; a single one may come once an epoch
_PARTS = re.compile(r"rank-(\d{1,7})\.parts\.json")
_TRACE = re.compile(r"rank-(\d{1,7})\.trace\.json\.gz")
_LARGEST = 1 << 22


class Queue(NamedTuple):
    """Seconds of a mean step in which somebody was ready to run and had no CPU; 0 where the system does not tell.

    ``thread`` is the one that takes the steps, ``recorded`` the same in a recorded step, ``workers`` the mean worker
    of the loader: with each of n workers late by that much, so is each batch.
    """

    thread: float = 0.0
    recorded: float = 0.0
    workers: float = 0.0


@dataclass(frozen=True)
class Timed:
    """Steps that were timed without a profiler: seconds of a mean step, in all and in each phase.

    ``often`` counts the evaluations and the saves among them; ``busy`` has the seconds on a CPU, by phase.
    """

    steps: int
    seconds: float
    phases: Mapping[str, float]
    often: Mapping[str, int]
    busy: Mapping[str, float] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)

    def queued(self, *phases: str) -> float:
        """Seconds in which the thread waited for a CPU in these phases.

        A thread loses its CPU where it uses it; but it had none for at least what these phases took, less their seconds on a
        CPU and all that it slept.
        """
        whole = sum(self.busy.values())
        if not whole:
            return 0.0
        slept = max(0.0, self.seconds - whole - self.queue.thread)
        busy = sum(self.busy.get(each, 0.0) for each in phases)
        off = max(0.0, sum(self.phases.get(each, 0.0) for each in phases) - busy)
        expected = self.queue.thread * busy / whole
        return max(off - slept, min(expected, off, self.queue.thread), 0.0)

    def usual(self, phase: str) -> float:
        """Seconds of evaluating or saving in a mean step; 0 where these few steps do not tell how often that is."""
        return self.phases.get(phase, 0.0) if self.often.get(phase, 0) >= _AT_LEAST else 0.0


def measure(found: Timeline, timed: Optional[Timed] = None) -> dict[str, Any]:
    """Return the parts of a mean step in seconds, and what they rest on.

    Where steps were timed as well, the phases are as long as they were there, and the trace says only what is in
    them: what recording costs is left out.
    """
    window = merged(found.steps) or [found.window]
    # Between the phases of our own steps is the profiler's doing, mostly; the timed steps tell what else there is.
    marked = [span for spans in found.phases.values() for span in spans]
    within = common(window, merged(marked)) if timed is not None and "forward" in found.phases else window
    on_gpu = bool(found.kernels.starts)
    traced, facts = (split_gpu if on_gpu else split_cpu)(found, within)
    steps = max(1, len(found.steps))
    seconds = {name: value / steps / 1e6 for name, value in traced.items()}
    seconds["queued"], added = 0.0, None
    if timed is not None:
        facts.update(queued_seconds=timed.queue.thread, queued_workers_seconds=timed.queue.workers)
        most = _RECORDING * float(facts["operators"])
        # A GPU goes on while its host waits for a CPU: what that costs is in the GPU's idle time.
        known = replace(timed, queue=timed.queue._replace(thread=0.0, recorded=0.0)) if on_gpu else timed
        seconds, added = _as_timed(seconds, known, most)
    seconds["copying"] += seconds.pop("copying_data")
    return {
        "schema": SCHEMA,
        "device": "cuda" if on_gpu else "cpu",
        "recorded_steps": len(found.steps),
        "recorded_step_seconds": length(window) / steps / 1e6,
        "timed_steps": None if timed is None else timed.steps,
        "recording_seconds": added,
        "step_seconds": sum(seconds.values()),
        "parts": {name: seconds[name] for name in PARTS},
        "facts": {**facts, "types": dict(found.types)},
    }


def _as_timed(traced: dict[str, float], timed: Timed, most: float) -> tuple[dict[str, float], float]:
    """Return the parts as they were without the profiler, and what it added to a step.

    It adds to each operator, ``most`` to all of them at the most: that is taken off the small ones. Whatever else made
    the recorded steps longer or shorter did so to all parts.
    """
    apart = {name: timed.phases.get(name, 0.0) for name in ("data", "evaluating", "saving")}
    between = max(0.0, timed.seconds - sum(timed.phases.values()))
    inside = max(0.0, timed.seconds - sum(apart.values()) - between)
    queued = min(timed.queued("forward", "backward", "optimizer"), inside)
    bare = inside - queued
    inner = {name: traced[name] for name in ("copying", "computing", "small", "communicating", "outside")}
    # A thread that has lost its CPU runs nothing, for milliseconds mostly, and so does one that sleeps: what it slept is outside,
    # but for the sums over ranks. Where it lost its CPU, in an operator or outside, a trace does not tell.
    busy = sum(timed.busy.get(each, 0.0) for each in ("forward", "backward", "optimizer"))
    slept = max(0.0, bare - busy - inner["communicating"]) if timed.busy else 0.0
    inner["outside"] = max(inner["outside"] - timed.queue.recorded, min(inner["outside"], slept))
    added = max(0.0, sum(traced[name] for name in inner) - timed.queue.recorded - bare)
    inner["small"] = max(0.0, inner["small"] - min(added, most))
    whole = sum(inner.values())
    seconds = {name: value * bare / whole if whole else 0.0 for name, value in inner.items()}
    if not whole:
        seconds["computing"] = bare
    seconds["outside"] += between
    at_data = traced["data"] + traced["copying_data"]
    copied = traced["copying_data"] / at_data if at_data else 0.0
    late = min(timed.queued("data") + timed.queue.workers, apart["data"])
    data = apart["data"] - late
    seconds["data"], seconds["copying_data"] = data * (1 - copied), data * copied
    seconds["queued"] = queued + late
    for name in ("evaluating", "saving"):
        seconds[name] = timed.usual(name)
    return seconds, added


def measured_trace(path: Path, timed: Optional[Timed] = None, most: Optional[int] = None) -> dict[str, Any]:
    """Return what a trace tells.

    Raises:
        Unreadable: it is no trace, is cut off, has no operators, or has more than ``most`` characters.
    """
    found = timeline(events(path, most))
    if not found.window[1] - found.window[0] > 0:
        raise Unreadable("it holds no operators")
    return measure(found, timed)


def measured_in(folder: Path) -> tuple[dict[int, Mapping[str, Any]], list[str]]:
    """Return what each rank left in its folder, by what it worked out itself or else by its trace; and what could not be read."""
    found: dict[int, Mapping[str, Any]] = {}
    notes: list[str] = []
    for path in sorted(folder.glob("rank-*.parts.json")):
        name = _PARTS.fullmatch(path.name)
        document = _document(path) if name else None
        if name and document is not None:
            found[int(name[1])] = document
    for path in sorted(folder.glob("rank-*.trace.json.gz")):
        name = _TRACE.fullmatch(path.name)
        if name is None or int(name[1]) in found:
            continue
        try:
            found[int(name[1])] = measured_trace(path)
        except Unreadable as error:
            notes.append(f"{path}: {error}")
    return found, notes


def _document(path: Path) -> Optional[Mapping[str, Any]]:
    try:
        if path.stat().st_size > _LARGEST or not path.is_file():
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == SCHEMA else None
