"""One probe, from its plan to what it used; and several with micro-batches of another size."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurmgpu.amounts import count, percent
from slurmgpu.cli.terminal import note
from slurmgpu.cli.waiting import Wait
from slurmgpu.errors import SlurmUnreachable
from slurmgpu.files.settings import load_settings
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.causes import cause_of
from slurmgpu.jobs.report.advising import Proposal
from slurmgpu.jobs.report.gathering import (
    MOST_TRIES,
    JobReport,
    Probed,
    Reports,
    Tried,
    best,
    ended_well,
    looked_into,
    next_try,
    pace_in,
    probed,
    report_on_jobs,
)
from slurmgpu.jobs.select import Selection, current_user
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.runs.bench.memory import measured_before
from slurmgpu.runs.derived_jobs import SLURM_SECONDS, as_probe, goes_on, is_sampled, left_out
from slurmgpu.runs.metrics import folder_of
from slurmgpu.runs.prepare import prepare
from slurmgpu.runs.prepared import Prepared
from slurmgpu.runs.submit import submit_prepared
from slurmgpu.slurm import History, Slurm, Start

if TYPE_CHECKING:
    from slurmgpu.diagnosis.facts import Cause


_ACCOUNTING_LATE = 60.0
"""Seconds for which accounting may lag behind the queue."""


class Probe(NamedTuple):
    """A job that is to be probed."""

    asked: Job
    """As its file and the options ask for it."""
    prepared: Prepared
    """As it is submitted."""


class ProbeResult(NamedTuple):
    """The result of a probe."""

    probe: Probe
    run: Run
    report: JobReport
    well: bool
    """True if it ended as it was to."""
    cause: Cause | None
    """The first failure, if it did not."""


def plan_probe(given: dict[str, Any], minutes: int, accumulate: int | None = None) -> Probe:
    """Read and plan the job that file and options describe; with micro-batches of another size, where that is named."""
    policy = load_settings(Path.cwd()).settings.policy.sampling
    asked: list[Job] = []

    def change(job: Job, _: Cluster) -> Job:
        asked.append(job)
        if accumulate is not None and job.train is not None:
            job = job.model_copy(update={"train": job.train.model_copy(update={"accumulate": accumulate})})
        # Slurm refuses to be asked for less than it does (22.05).
        often = None if is_sampled(job, policy) else Slurm().sampling()
        seldom = often is not None and often.told and (often.seconds == 0 or often.seconds > SLURM_SECONDS)
        return as_probe(job, minutes, policy, SLURM_SECONDS if seldom else 0)

    prepared = prepare(given, note, starts="submit", change=change)
    return Probe(asked[0], prepared)


def tell_beforehand(probe: Probe, minutes: int) -> None:
    """Say what the probe costs and leaves out, before anything is sent."""
    plan = probe.prepared.plan
    gpus = f"{count(plan.gpus, 'GPU')} on " if plan.gpus else ""
    hours = next((one.value for one in plan.reasons if one.what == "GPU-hours"), None)
    cost = f", {hours.removesuffix(' at most')} GPU-hours" if hours else ""
    note(
        f"probe {plan.name}: {gpus}{count(plan.nodes, 'node')} for {count(minutes, 'minute')}{cost}; Slurm may take a minute "
        "more to end it"
    )
    for one in left_out(probe.asked):
        note(f"without the rest of the job: {one}")
    for sentence in measured_before(probe.prepared):
        note(sentence)
    if plan.train is None:
        note("the command runs as it is: what it writes outside its run directory, it writes there now, too")


def run_probe(probe: Probe, at_most: int | None) -> ProbeResult:
    """Submit it, wait for its end, and read what it used. ``at_most``: minutes in the queue."""
    prepared, slurm = probe.prepared.make_files(note), Slurm()
    run = submit_prepared(prepared, slurm, note, probe=True)
    job = Wait(slurm, run, at_most).until_its_end()
    well = ended_well(job, folder_of(Path(run.run_dir), job))
    limit = probe.asked.resources.time
    whole = None if limit is None else limit.seconds if limit.seconds is not None else "UNLIMITED"
    found, request = report_of(slurm, run, job, prepared.cluster), Probed(whole, goes_on(probe.asked))
    report = probed(found, run, prepared.plan, request, prepared.cluster)
    return ProbeResult(probe, run, report, well, None if well else cause_of(job, run))


def report_of(slurm: Slurm, run: Run, job: JobStatus, cluster: Cluster) -> JobReport:
    """Return the report on the job, once accounting has its steps; without accounting, by its samples alone."""
    selection = Selection(text=run.run_dir, run=run)
    deadline = time.monotonic() + _ACCOUNTING_LATE
    pause = 1.0
    found: Reports | None = None

    def is_told(found: Reports) -> bool:
        figures = found.jobs[0].figures if found.jobs else None
        return figures is not None and figures.job.state.is_final and figures.steps > 0

    with as_interrupts():
        while found is None or not (is_told(found) or not found.available or time.monotonic() > deadline):
            if found is not None:
                time.sleep(pause)
                pause = min(2 * pause, 10.0)
            try:
                found = report_on_jobs(
                    slurm,
                    [selection],
                    user=current_user(),
                    since=None,
                    run_for=lambda _: run,
                    cluster=cluster,
                )
            except SlurmUnreachable as error:  # how it ended is known; the rest its samples tell
                note(f"what Slurm itself measured is not known: {error.message}")
                break
    if found is not None and found.jobs and found.jobs[0].figures.job.state.is_final:
        return found.jobs[0]
    return JobReport(looked_into(History((Start(job),)), slurm.sampling(), lambda _: run), cluster, run)


_FULL = frozenset({"gpu-memory", "cpu-memory", "host-memory"})
"""First causes by which a micro-batch was too large (slurmgpu/diagnosis/table/)."""


def find_micro_batch(
    given: dict[str, Any], minutes: int, wait_at_most: int | None, probe: Probe, parts: int
) -> ProbeResult:
    """Probe with the job's own micro-batch, then with others; return the result with the one to take.

    ``parts``: samples that each process takes in an optimizer step.
    """
    train = probe.asked.train
    assert train is not None
    first = train.accumulate
    note(
        f"--micro-batch: up to {MOST_TRIES} such jobs, one after another; batch_size {train.batch_size} stays"
    )
    tried: dict[int, Tried] = {}
    found: dict[int, ProbeResult] = {}
    number = next_try(first, parts, tried)
    while number is not None:
        size = parts // number
        note(f"accumulate {number}: micro-batches of {size}")
        one = run_probe(probe if number == first else plan_probe(given, minutes, number), wait_at_most)
        figures = one.report.figures
        kind = one.cause.kind if one.cause is not None else None
        if not one.well and figures.job.state is not JobState.OUT_OF_MEMORY and kind not in _FULL:
            return found[best(first, tried) or first] if tried and number != first else one
        pace = pace_in(folder_of(Path(one.run.run_dir), figures.job))
        seconds = None if pace is None else pace.step_seconds
        peak, total = figures.gpu_memory_peak, figures.gpu_memory_total
        share = peak / total if peak is not None and total else None
        found[number], tried[number] = one, Tried(one.well, seconds, share)
        if one.well:
            words = "it fits" + ("" if seconds is None else f", {seconds:.3g} s a step")
            words += "" if share is None else f", {percent(share)} of the GPU's memory"
        else:
            words = f"memory was full with {count(size, 'sample')} at a time"
        note(f"accumulate {number}: {words}")
        number = next_try(first, parts, tried)
    chosen = best(first, tried)
    if chosen is None:
        return found[max(found)]
    if chosen == first:
        return found[first]
    own, other = tried[first], tried[chosen]
    if own.fits:
        why = f"{other.step_seconds:.3g} s a step in place of {own.step_seconds:.3g} s, on the same batch"
    else:
        why = f"with {first}, memory was full; the batch stays the same"
    report = replace(found[chosen].report, also=(Proposal("accumulate", first, chosen, why),))
    return found[chosen]._replace(report=report)
