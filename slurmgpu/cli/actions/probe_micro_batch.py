"""``slurmgpu probe --micro-batch``: several probes, each with micro-batches of another size, of the same batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmgpu.amounts import count, percent
from slurmgpu.cli.actions.probe_once import Found, Probe, planned, run_it
from slurmgpu.cli.preparing import note
from slurmgpu.jobs.report.advising import Proposal
from slurmgpu.jobs.report.probed import MOST_TRIES, Tried, best, next_try, pace_in
from slurmgpu.models.run import JobState
from slurmgpu.runs.metrics import folder_of

if TYPE_CHECKING:
    from slurmgpu.cli.probe import How

_FULL = frozenset({"gpu-memory", "cpu-memory", "host-memory"})
"""First causes by which a micro-batch was too large (slurmgpu/diagnosis/table/)."""


def search(given: dict[str, Any], how: How, probe: Probe, parts: int) -> Found:
    """Probe with the job's own micro-batch, then with others; what was found with the one to take.

    ``parts``: samples that each process takes in an optimizer step.
    """
    train = probe.asked.train
    assert train is not None
    first = train.accumulate
    note(
        f"--micro-batch: up to {MOST_TRIES} such jobs, one after another; batch_size {train.batch_size} stays"
    )
    tried: dict[int, Tried] = {}
    found: dict[int, Found] = {}
    number = next_try(first, parts, tried)
    while number is not None:
        note(f"accumulate {number}: micro-batches of {parts // number}")
        one = run_it(probe if number == first else planned(given, how.minutes, number), how.wait_at_most)
        full = _was_full(one)
        if not one.well and not full:
            return found[best(first, tried) or first] if tried and number != first else one
        found[number], tried[number] = one, Tried(one.well, _step_seconds(one), _memory_share(one))
        note(f"accumulate {number}: {_said(tried[number], parts // number)}")
        number = next_try(first, parts, tried)
    chosen = best(first, tried)
    if chosen is None:
        return found[max(found)]
    return _proposed(found[chosen], first, chosen, tried) if chosen != first else found[first]


def _was_full(found: Found) -> bool:
    job = found.report.figures.job
    kind = found.cause.kind if found.cause is not None else None
    return not found.well and (job.state is JobState.OUT_OF_MEMORY or kind in _FULL)


def _step_seconds(found: Found) -> float | None:
    pace = pace_in(folder_of(Path(found.run.run_dir), found.report.figures.job))
    return None if pace is None else pace.step_seconds


def _memory_share(found: Found) -> float | None:
    figures = found.report.figures
    peak, total = figures.gpu_memory_peak, figures.gpu_memory_total
    return peak / total if peak is not None and total else None


def _said(one: Tried, size: int) -> str:
    if not one.fits:
        return f"memory was full with {count(size, 'sample')} at a time"
    pace = "" if one.step_seconds is None else f", {one.step_seconds:.3g} s a step"
    return f"it fits{pace}" + (
        "" if one.memory_share is None else f", {percent(one.memory_share)} of the GPU's memory"
    )


def _proposed(found: Found, first: int, chosen: int, tried: dict[int, Tried]) -> Found:
    own, other = tried[first], tried[chosen]
    if not own.fits:
        why = f"with {first}, memory was full; the batch stays the same"
    else:
        why = f"{other.step_seconds:.3g} s a step in place of {own.step_seconds:.3g} s, on the same batch"
    proposal = Proposal("accumulate", first, chosen, why)
    return found._replace(report=replace(found.report, also=(proposal,)))
