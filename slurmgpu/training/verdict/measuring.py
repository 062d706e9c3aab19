"""From the tracks of a trace to what the time of a step goes into; the parts add up to the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from .intervals import common, length, merged
from .on_cpu import split_cpu
from .on_gpu import split_gpu
from .timeline import Timeline

__all__ = ["PARTS", "SCHEMA", "Timed", "measure"]

SCHEMA = "slurmgpu.profile-parts/1"
PARTS = ("data", "copying", "computing", "small", "communicating", "outside", "evaluating", "saving")
"""What a step's time is split into."""

_AT_LEAST = 2  # evaluations or saves among the timed steps; a single one may come once an epoch


@dataclass(frozen=True)
class Timed:
    """Steps that were timed without a profiler: seconds of a mean step, in all and in each phase.

    ``often`` counts the evaluations and the saves among them.
    """

    steps: int
    seconds: float
    phases: Mapping[str, float]
    often: Mapping[str, int]

    def usual(self, phase: str) -> float:
        """Seconds of evaluating or saving in a mean step; 0 where these few steps do not tell how often that is."""
        return self.phases.get(phase, 0.0) if self.often.get(phase, 0) >= _AT_LEAST else 0.0


def measure(found: Timeline, timed: Optional[Timed] = None) -> dict[str, Any]:
    """The parts of a mean step in seconds, and what they rest on.

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
    added = None
    if timed is not None:
        seconds, added = _as_timed(seconds, timed)
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


def _as_timed(traced: dict[str, float], timed: Timed) -> tuple[dict[str, float], float]:
    """The parts as they were without the profiler, and what it added to a step: mostly to many small operators."""
    apart = {name: timed.phases.get(name, 0.0) for name in ("data", "evaluating", "saving")}
    between = max(0.0, timed.seconds - sum(timed.phases.values()))
    bare = max(0.0, timed.seconds - sum(apart.values()) - between)
    inner = {name: traced[name] for name in ("copying", "computing", "small", "communicating", "outside")}
    added = max(0.0, sum(inner.values()) - bare)
    inner["small"] = max(0.0, inner["small"] - added)
    whole = sum(inner.values())
    seconds = {name: value * bare / whole if whole else 0.0 for name, value in inner.items()}
    if not whole:
        seconds["computing"] = bare
    seconds["outside"] += between
    at_data = traced["data"] + traced["copying_data"]
    copied = traced["copying_data"] / at_data if at_data else 0.0
    seconds["data"], seconds["copying_data"] = apart["data"] * (1 - copied), apart["data"] * copied
    for name in ("evaluating", "saving"):
        seconds[name] = timed.usual(name)
    return seconds, added
