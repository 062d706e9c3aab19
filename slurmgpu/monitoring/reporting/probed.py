"""What a probe tells: the report of a job of which a part ran, with what is known of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.models.samples import SampleSummary
from slurmgpu.monitoring.metrics import folder_of
from slurmgpu.monitoring.reporting.figures import LEAST_SAMPLES, Figures, Peak
from slurmgpu.monitoring.reporting.gathering import JobReport
from slurmgpu.monitoring.reporting.pace import ON_TIME, Pace, pace_of
from slurmgpu.monitoring.reporting.proposals import Part
from slurmgpu.monitoring.reporting.series import Line, read_series
from slurmgpu.monitoring.reporting.training import read_rows
from slurmgpu.monitoring.reporting.wording import clock
from slurmgpu.monitoring.samples import summary

__all__ = ["Probed", "ended_well", "pace_in", "probed"]

GROWTH = 1.02
"""Memory whose most in the last quarter is above that of all before by more than this share is still growing."""
_LEAST_SAMPLES = 8


class Probed(NamedTuple):
    """What was asked for by the job itself, where the probe asked for less."""

    limit: int | str | None
    """Seconds, or UNLIMITED; None: the job names no limit."""
    starts_again: bool
    """Whether it goes on in another start at its time limit."""


def ended_well(job: JobStatus, run_dir: Path) -> bool:
    """Whether a probe's job ended as it was to: of itself, at its limit, or as a training that stopped before it."""
    if job.state in (JobState.COMPLETED, JobState.TIMEOUT):
        return True
    pace = pace_in(run_dir)
    return job.state is JobState.FAILED and pace is not None and pace.ended == ON_TIME


def probed(found: JobReport, run: Run, plan: Plan, asked: Probed, cluster: Cluster | None) -> JobReport:
    """The report of a probe's job, against what the job itself asks for."""
    job = found.figures.job
    folder = folder_of(Path(run.run_dir), job)
    limit = asked.limit if isinstance(asked.limit, int) or asked.limit is None else "UNLIMITED"
    # Of a job that failed at once, accounting may not have the name yet.
    figures = replace(found.figures, job=job.model_copy(update={"limit": limit, "name": plan.name}))
    samples = None if job.raw_id is None else summary(folder, job.raw_id)
    _fill_in(figures, plan, samples)
    if job.state is JobState.COMPLETED or not ended_well(job, folder):
        return JobReport(figures, cluster, run)
    return JobReport(figures, cluster, run, _part(figures, folder, asked, plan.train is not None))


def _fill_in(figures: Figures, plan: Plan, samples: SampleSummary | None) -> None:
    """What accounting does not tell, of a site that has none: from the plan, and from the samples alone."""
    job = figures.job
    if figures.memory is None and plan.memory is not None:
        figures.memory = plan.memory.mib << 20
    every = re.search(r"task=(\d{1,6})\b", plan.option("acctg-freq") or "")
    if every and figures.peak is not None and figures.peak.source == "sacct":
        seconds = min(int(every[1]), figures.sampling.seconds)
        figures.sampling = figures.sampling._replace(seconds=seconds)
        often = seconds > 0 and (job.elapsed or 0) >= LEAST_SAMPLES * seconds
        figures.peak = replace(figures.peak, trusted=often)
    if samples is None:
        return
    if samples.cpu_cores_mean is not None and job.elapsed:
        # Accounting may not have heard of all steps yet.
        figures.cpu_seconds = max(figures.cpu_seconds or 0.0, samples.cpu_cores_mean * job.elapsed)
    if figures.peak is None and samples.rss_peak:
        figures.peak = Peak(samples.rss_peak, True, "samples")


def _part(figures: Figures, folder: Path, asked: Probed, is_training: bool) -> Part:
    job = figures.job
    series = read_series(folder, job.raw_id) if job.raw_id is not None else None
    cpus, grows = None, False
    if series is not None:
        cpus = _late(series.cpus.values())
        grows = any(map(_grows, series.memory.values()))
    pace = pace_in(folder)
    elapsed = job.elapsed or 0
    seconds = None if pace is None else pace.whole(elapsed)
    return Part(
        seconds,
        _how(pace, seconds, elapsed, is_training),
        cpus=cpus,
        grows=grows,
        starts_again=asked.starts_again,
        begun=pace is not None or not is_training,
        unseen=tuple(_unseen(pace, elapsed)),
    )


def pace_in(folder: Path) -> Pace | None:
    """The pace of the training in a run directory; None where there is none."""
    found = read_rows(folder)
    return None if found is None else pace_of(found[0])


def _how(pace: Pace | None, seconds: float | None, elapsed: int, is_training: bool) -> str:
    if pace is None and is_training:
        return f"its training had not begun {clock(elapsed)} after its start: a longer probe (--minutes) may see its steps"
    if pace is None:
        return f"the command was stopped after {clock(elapsed)}, and only slurmgpu's own trainings tell how far they are"
    if seconds is None or pace.step_seconds is None:
        return f"no line of metrics came in {clock(elapsed)} (log_every): a longer probe may see one"
    each = f"{pace.step_seconds:.3g} s" if pace.step_seconds < 10 else clock(pace.step_seconds)
    return f"{pace.total_steps:,} steps of {each}, and what comes once"


def _unseen(pace: Pace | None, elapsed: int) -> Iterator[str]:
    if pace is None:
        yield f"what it does after its first {clock(elapsed)}, such as an evaluation or a checkpoint"
        return
    if pace.epochs and not pace.evaluations:
        yield "the end of an epoch, with its evaluation"
    if not pace.checkpoints:
        yield "a checkpoint"


def _late(lines: Iterable[Line]) -> float | None:
    """CPUs in use in the second half of what was sampled, over all nodes."""
    means = [mean for line in lines if (mean := _mean_of_late(line)) is not None]
    return sum(means) if means else None


def _mean_of_late(line: Line) -> float | None:
    """Each sample's mean is that of the time since the one before."""
    if len(line) < _LEAST_SAMPLES:
        return None
    half = line[len(line) // 2 :]
    spans = [(after[0] - before[0], after[1]) for before, after in pairwise(half)]
    whole = sum(span for span, _ in spans)
    return sum(span * cpus for span, cpus in spans) / whole if whole > 0 else None


def _grows(line: Line) -> bool:
    """Whether the most in the last quarter of the time is above all before."""
    if len(line) < _LEAST_SAMPLES:
        return False
    begin = line[0][0] + 0.75 * (line[-1][0] - line[0][0])
    before = [amount for at, amount in line if at < begin]
    late = [amount for at, amount in line if at >= begin]
    return bool(before and late) and max(late) > GROWTH * max(before)
