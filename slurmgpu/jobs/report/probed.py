"""What a probe tells of the whole job: the time of the whole training, and the micro-batch that it should take.

The batch of an optimizer step stays as it is, so that the training learns the same: a larger micro-batch is fewer of them
(accumulate). Searched as powers of two, as Lightning's batch size finder and Accelerate's find_executable_batch_size do;
each try is a job of its own, so that one that was full leaves nothing behind, on any number of ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.amounts import duration
from slurmgpu.jobs.report.advising import Part
from slurmgpu.jobs.report.figures import LEAST_SAMPLES, Figures, Peak, read_rows
from slurmgpu.jobs.report.gathering import JobReport
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, JobStatus, Run, SampleSummary
from slurmgpu.runs.metrics import folder_of
from slurmgpu.runs.samples import Line, Series, read_series, summary
from slurmgpu.training.formats.metrics import MetricsRow, intervals_of
from slurmgpu.training.formats.rows import part, positive, whole

__all__ = [
    "MOST_TRIES", "ON_TIME", "Pace", "Probed", "Tried", "best", "ended_well", "next_try", "pace_in", "pace_of", "probed",
]  # fmt: skip

ON_TIME = "time"
"""The end of a training that its time limit stopped in good order (docs/metrics.md)."""


@dataclass(frozen=True)
class Pace:
    """One start of a training; None is "not measured"."""

    steps: int
    """That it took, by its last line: the metrics of the last few steps may be missing."""
    total_steps: int | None
    step_seconds: float | None
    """Of a step, without those of the first line: in these the loader and the compiler begin."""
    evaluations: int
    evaluation_seconds: float
    """Of an evaluation, the mean; 0 where there was none."""
    epochs: int | None
    """That the whole training has."""
    evaluations_in_all: int
    """That the whole training has, by its settings."""
    checkpoints: int
    ended: str | None
    """Why it ended, in its own words."""

    def whole(self, elapsed: float) -> float | None:
        """Seconds that the whole takes, where this start took ``elapsed`` in all; None where that is not known.

        What is neither a step nor an evaluation (the start of Python, data that is read, the last checkpoint) comes once.
        """
        if self.step_seconds is None or self.total_steps is None:
            return None
        taken = self.steps * self.step_seconds + self.evaluations * self.evaluation_seconds
        around = max(0.0, elapsed - taken)
        evaluations = max(self.evaluations_in_all, self.evaluations) * self.evaluation_seconds
        return around + self.total_steps * self.step_seconds + evaluations


def pace_of(rows: Iterable[MetricsRow]) -> Pace | None:
    """Return the pace of the newest start; None where none is there."""
    all_rows = list(rows)
    begins = [at for at, row in enumerate(all_rows) if row.kind == "start"]
    if not begins:
        return None
    start, rest = all_rows[begins[-1]], all_rows[begins[-1] + 1 :]
    # The first line has the beginning of the loader and of the compiler.
    measured = [one for one in intervals_of(rest, start.step) if one.seconds > 0]
    measured = measured[1:] or measured
    evaluated = [positive(row.values.get("seconds")) or 0.0 for row in rest if row.kind == "eval"]
    settings, total = part(start.values, "settings"), whole(start.values.get("total_steps"))
    batch, samples = whole(settings.get("batch_size")), whole(start.values.get("dataset_samples"))
    # Epochs of the whole, the one that a largest number of steps cuts off included.
    epochs = whole(settings.get("epochs"))
    if total is not None and batch and samples:
        by_steps = math.ceil(total * batch / samples)
        epochs = by_steps if epochs is None else min(epochs, by_steps)
    # The whole evaluates every so many epochs, the end included, every so many steps, and once where both fall together.
    every, often = whole(settings.get("evaluate_every", 1)), whole(settings.get("evaluate_steps"))
    evaluations = math.ceil(epochs / every) if epochs and every else 1
    if total and often:
        evaluations += (total - 1) // often
        both = math.lcm(often, math.ceil(samples / batch) * every) if every and batch and samples else 0
        evaluations -= (total - 1) // both if both else 0
    steps = sum(one.steps for one in measured)
    ends = [row.values.get("reason") for row in rest if row.kind == "end"]
    return Pace(
        steps=max((row.step for row in rest), default=start.step) - start.step,
        total_steps=total,
        step_seconds=sum(one.seconds for one in measured) / steps if steps else None,
        evaluations=len(evaluated),
        evaluation_seconds=sum(evaluated) / len(evaluated) if evaluated else 0.0,
        epochs=epochs,
        evaluations_in_all=evaluations,
        checkpoints=sum(row.kind == "checkpoint" for row in rest),
        ended=next((one for one in reversed(ends) if isinstance(one, str)), None),
    )


GROWTH = 1.02
"""Memory whose most in the last quarter is above that of all before by more than this share is still growing."""
_LEAST_SAMPLES = 8


class Probed(NamedTuple):
    """The job's own request, where the probe asked for less."""

    limit: int | str | None
    """Seconds, or UNLIMITED; None: the job names no limit."""
    starts_again: bool
    """True if it goes on in another start at its time limit."""


def ended_well(job: JobStatus, run_dir: Path) -> bool:
    """Return True if a probe's job ended as it was to: of itself, at its limit, or as a training that stopped before it."""
    if job.state in (JobState.COMPLETED, JobState.TIMEOUT):
        return True
    pace = pace_in(run_dir)
    return job.state is JobState.FAILED and pace is not None and pace.ended == ON_TIME


def probed(found: JobReport, run: Run, plan: Plan, asked: Probed, cluster: Cluster | None) -> JobReport:
    """Return the report of a probe's job, against what the job itself asks for."""
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
    """Fill in what accounting does not tell, from the plan and from the samples alone."""
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
    job, elapsed = figures.job, figures.job.elapsed or 0
    series = read_series(folder, job.raw_id) if job.raw_id is not None else Series()
    means = [mean for line in series.cpus.values() if (mean := _mean_of_late(line)) is not None]
    pace = pace_in(folder)
    seconds = None if pace is None else pace.whole(elapsed)
    if pace is None and is_training:
        how = f"its training had not begun {duration(elapsed)} after its start: a longer probe (--minutes) may see its steps"
    elif pace is None:
        how = f"the command was stopped after {duration(elapsed)}, and only slurmgpu's own trainings tell how far they are"
    elif seconds is None or pace.step_seconds is None:
        how = f"no line of metrics came in {duration(elapsed)} (log_every): a longer probe may see one"
    else:
        each = f"{pace.step_seconds:.3g} s" if pace.step_seconds < 10 else duration(pace.step_seconds)
        how = f"{pace.total_steps:,} steps of {each}, and what comes once"
    unseen = [f"what it does after its first {duration(elapsed)}, such as an evaluation or a checkpoint"]
    if pace is not None:
        unseen = ["the end of an epoch, with its evaluation"] if pace.epochs and not pace.evaluations else []
        unseen += [] if pace.checkpoints else ["a checkpoint"]
    return Part(
        seconds,
        how,
        cpus=sum(means) if means else None,
        grows=any(map(_grows, series.memory.values())),
        starts_again=asked.starts_again,
        begun=pace is not None or not is_training,
        unseen=tuple(unseen),
    )


def pace_in(folder: Path) -> Pace | None:
    """Return the pace of the training in a run directory; None where there is none."""
    found = read_rows(folder)
    return None if found is None else pace_of(found[0])


def _mean_of_late(line: Line) -> float | None:
    """Return the mean of the second half, where each sample's mean is that of the time since the one before."""
    if len(line) < _LEAST_SAMPLES:
        return None
    spans = [(after[0] - before[0], after[1]) for before, after in pairwise(line[len(line) // 2 :])]
    whole = sum(span for span, _ in spans)
    return sum(span * mean for span, mean in spans) / whole if whole > 0 else None


def _grows(line: Line) -> bool:
    """Return True if the most in the last quarter of the time is above all before."""
    if len(line) < _LEAST_SAMPLES:
        return False
    begin = line[0][0] + 0.75 * (line[-1][0] - line[0][0])
    before = [amount for at, amount in line if at < begin]
    late = [amount for at, amount in line if at >= begin]
    return bool(before and late) and max(late) > GROWTH * max(before)


MOST_TRIES = 5
FULLEST = 0.95
"""A GPU that was fuller than this has no room for what a probe does not see, and its micro-batch is not changed to."""
FASTER = 0.97
"""Another micro-batch is worth a change if its step takes no more than this share of the time."""


class Tried(NamedTuple):
    """The result of one ``accumulate``."""

    fits: bool
    step_seconds: float | None = None
    """Of an optimizer step; None: not measured."""
    memory_share: float | None = None
    """Of the fullest GPU's memory, what was in use at the peak; None: not measured."""


def next_try(first: int, parts: int, tried: Mapping[int, Tried]) -> int | None:
    """Return the ``accumulate`` that is tried next; None where enough is known.

    ``first`` is the job's own, and ``parts`` the samples that each process takes in an optimizer step: accumulate divides it.
    """
    if len(tried) >= MOST_TRIES:
        return None
    valid = [number for number in range(1, parts + 1) if parts % number == 0]
    fitting = [number for number, one in tried.items() if one.fits]
    if not tried:
        return first
    if not fitting:  # smaller micro-batches, until one fits
        return next((number for number in valid if number >= 2 * max(tried)), None)
    if not tried[first].fits:
        return None
    fewer = [number for number in valid if number <= min(tried) / 2]
    return max(fewer, default=None) if tried[min(tried)].fits else None


def best(first: int, tried: Mapping[int, Tried]) -> int | None:
    """Return the ``accumulate`` to take: the job's own, unless it did not fit or another is faster; None where none fitted."""
    fitting = {number: one for number, one in tried.items() if one.fits}
    roomy = {number: one for number, one in fitting.items() if (one.memory_share or 0.0) <= FULLEST}
    if first not in fitting:
        return min(roomy or fitting, default=None)
    own = fitting[first].step_seconds
    faster = {one.step_seconds: number for number, one in roomy.items() if one.step_seconds is not None}
    if own is None or not faster or min(faster) > FASTER * own:
        return first
    return faster[min(faster)]
