"""From JOB words, from a time or from a probe to reports: what Slurm is asked, and which run directories tell more.

A probe tells of the whole job: the time of the whole training, and the micro-batch that it should take. The batch of an
optimizer step stays as it is, so that the training learns the same: a larger micro-batch is fewer of them (accumulate).
Searched as powers of two, as Lightning's batch size finder and Accelerate's find_executable_batch_size do; each try is a
job of its own, so that one that was full leaves nothing behind, on any number of ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.amounts import duration
from slurmgpu.errors import SlurmUnreachable
from slurmgpu.jobs.causes import with_cause, with_whole_exit_code
from slurmgpu.jobs.look import status
from slurmgpu.jobs.report.advising import Advice, Part, Proposal, advise
from slurmgpu.jobs.report.figures import (
    LEAST_SAMPLES,
    Figures,
    Peak,
    figures_of,
    read_rows,
    read_training,
    together,
)
from slurmgpu.jobs.select import Selection
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, JobStatus, Run, SampleSummary
from slurmgpu.runs.metrics import folder_of
from slurmgpu.runs.samples import Line, Series, read_series, summary
from slurmgpu.slurm import Histories, History, JobId, Sampling, Slurm, Start, cluster_name_here, even
from slurmgpu.training.formats.metrics import MetricsRow, intervals_of
from slurmgpu.training.formats.rows import part, positive, whole

__all__ = [
    "DEFAULT_SINCE", "MOST_TRIES", "ON_TIME", "JobReport", "Pace", "Probed", "Reports", "Tried", "best", "ended_well",
    "looked_into", "next_try", "pace_in", "pace_of", "probed", "report_on_jobs", "report_since",
]  # fmt: skip


DEFAULT_SINCE = timedelta(days=7)
MOST_LOOKED_INTO = 200
"""Of so many jobs, those with the most GPU-hours, the run directories are read for a summary."""
_MOST_ASKED = 1000

_OF_A_PROBE = "it was a probe, which is stopped on purpose: what to ask for is what slurmgpu probe itself proposed at its end"

RunFor = Callable[[JobStatus], Run | None]


@dataclass(frozen=True)
class JobReport:
    """One job, or an array's tasks taken together: asked, used, and the next request."""

    figures: Figures
    cluster: Cluster | None = None
    """Where it ran, as far as a profile describes it."""
    run: Run | None = None
    part: Part | None = None
    """Of a probe that was stopped on purpose: what is known of the rest."""
    also: tuple[Proposal, ...] = ()
    """The proposals of several probes together."""

    @cached_property
    def advice(self) -> Advice:
        """The next request, worked out where it is asked for."""
        stopped = self.figures.job.state is JobState.TIMEOUT
        if stopped and self.part is None and self.run is not None and self.run.probe:
            return Advice((), (_OF_A_PROBE,))
        advice = advise(self.figures, self.cluster, self.part)
        return replace(advice, proposals=(*advice.proposals, *self.also)) if self.also else advice

    @property
    def doubts(self) -> tuple[str, ...]:
        """Figures that cannot be known, and why."""
        unseen = self.part.unseen if self.part is not None else ()
        rest = (f"the rest: {'; '.join(unseen)}: not seen, and may need more",) if unseen else ()
        return (*self.figures.doubts, *rest)


@dataclass(frozen=True)
class Reports:
    """Reports on jobs at one moment."""

    cluster: str | None
    time: datetime
    """When Slurm was asked; of several answers, the oldest."""
    jobs: list[JobReport]
    """Arrays taken together."""
    each: list[Figures] = field(default_factory=list)
    """Every job and task by itself, where they are to be added up."""
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """The JOB words that lead to no job that Slurm knows, though it was asked."""
    unasked: list[str] = field(default_factory=list)
    """The JOB words of which it is not known whether there is such a job."""
    since: datetime | None = None
    available: bool = True
    """True if accounting answered: without it little is known of what has ended."""
    age: float = 0.0
    """Seconds since then: another process of the user's may have asked."""


def report_on_jobs(
    slurm: Slurm,
    selections: Sequence[Selection],
    *,
    user: str | None,
    since: datetime | None,
    run_for: RunFor,
    cluster: Cluster | None = None,
    counts: Callable[[JobStatus], bool] = lambda _: True,
) -> Reports:
    """Report on the jobs that the words mean; an array whose number is named is one, its tasks taken together.

    ``counts``: whether a job that a word leads to is wanted.

    Asks accounting once, slurmctld once for how often it samples, and the queue only about jobs that accounting does not
    know. Raises SlurmUnreachable when none of them answers.
    """
    now = datetime.now(timezone.utc)
    answer = _ask(slurm, selections, user, since or now - DEFAULT_SINCE)
    found = [one for one in answer.jobs if any(each.matches(one.job) for each in selections)]
    missing = [one for one in selections if not any(one.matches(history.job) for history in found)]
    notes, lost, unasked = list(answer.notes), [one.text for one in missing], []
    if missing:
        later = status(slurm, user=user, selections=missing, since=since, run_for=run_for)
        found += [History((Start(job),)) for job in later.jobs if job.source != "none"]
        notes += [note for note in later.notes if note not in notes]
        lost, unasked = later.missing, later.unasked
    found = [one for one in found if counts(one.job)]
    sampling = slurm.sampling() if found else Sampling()
    figures = [looked_into(one, sampling, run_for) for one in found]
    jobs = [_reported(group, cluster, run_for) for group in _arrays(figures, selections)]
    age = slurm.oldest()
    asked, cluster_name = now - timedelta(seconds=age), _name(slurm, found)
    return Reports(
        cluster_name, asked, jobs, figures, notes, lost, unasked, available=answer.available, age=age
    )


def report_since(
    slurm: Slurm,
    since: datetime,
    *,
    user: str | None,
    run_for: RunFor,
    cluster: Cluster | None = None,
    counts: Callable[[JobStatus], bool] = lambda _: True,
) -> Reports:
    """Report on all jobs of a user (None: everybody's) that ran since a moment and count, by one sacct call.

    The run directories of those with the most GPU-hours are read.
    """
    now = datetime.now(timezone.utc)
    answer = _histories(slurm, user=user, since=since)
    # Accounting is asked from an even time on, which is earlier.
    ran = [one for one in answer.jobs if one.job.elapsed or one.job.state.is_final]
    ran = [one for one in ran if (one.job.end is None or one.job.end >= since) and counts(one.job)]
    sampling = slurm.sampling() if ran else Sampling()
    figures = [figures_of(one, sampling) for one in ran]
    order = sorted(range(len(ran)), key=lambda at: -(figures[at].gpu_hours or 0.0))
    runs: dict[str, Run] = {}
    for at in order[:MOST_LOOKED_INTO]:
        run = run_for(ran[at].job) if figures[at].gpu_hours else None
        if run is not None:
            runs[ran[at].job.job_id] = run
            figures[at] = _with_run(ran[at], sampling, run)
    collapsed = (together(group) for group in _arrays(figures, ()))
    jobs = [JobReport(one, cluster, runs.get(one.job.job_id)) for one in collapsed]
    age = slurm.oldest()
    asked, name, known = now - timedelta(seconds=age), _name(slurm, ran), answer.available
    return Reports(name, asked, jobs, figures, answer.notes, since=since, available=known, age=age)


def _histories(
    slurm: Slurm, *, user: str | None = None, ids: Sequence[int] = (), since: datetime | None = None
) -> Histories:
    try:
        return slurm.history(user=user, ids=ids, since=None if ids or since is None else even(since))
    except SlurmUnreachable as error:
        silence = f"accounting is not available: {error.message}"
        return Histories(notes=[silence], available=False, silent=True)


def _ask(slurm: Slurm, selections: Sequence[Selection], user: str | None, since: datetime) -> Histories:
    """Return what accounting knows: by id where all words lead to one, the earlier jobs of a run included."""
    ids = {one.id.number for one in selections if one.id} | {
        number for one in selections if one.id and one.run for number in one.run.job_ids
    }
    if all(one.id for one in selections):
        return _histories(slurm, ids=sorted(ids)[-_MOST_ASKED:])
    answer = _histories(slurm, user=user, since=since)
    recent = [one for one in answer.jobs if one.job.end is None or one.job.end >= since]
    known = {(JobId.parse(one.job.job_id) or JobId(0)).number for one in recent}
    older = sorted(ids - known)
    if not older or not answer.available:
        return replace(answer, jobs=recent)
    more = _histories(slurm, ids=older[-_MOST_ASKED:])
    return replace(answer, jobs=[*recent, *more.jobs], notes=[*answer.notes, *more.notes])


def looked_into(history: History, sampling: Sampling, run_for: RunFor) -> Figures:
    """Return the figures of a job, with what its run directory adds, where it has one."""
    run = run_for(history.job)
    return figures_of(history, sampling) if run is None else _with_run(history, sampling, run)


def _with_run(history: History, sampling: Sampling, run: Run) -> Figures:
    run_dir, number = Path(run.run_dir), history.job.raw_id
    samples = summary(run_dir, number) if number is not None else None
    training = read_training(folder_of(run_dir, history.job))
    if training is not None and len(run.job_ids) > 1:
        # A resumed run: the metrics are those of several jobs, and the hours those of one.
        training = replace(training, whole=False)
    return figures_of(history, sampling, samples, training)


def _reported(tasks: list[Figures], cluster: Cluster | None, run_for: RunFor) -> JobReport:
    figures, run = together(tasks), run_for(tasks[0].job)
    if figures.tasks == 1 and run is not None:
        # With the whole exit code and the first cause, as far as its script wrote them down.
        job = with_cause(with_whole_exit_code(figures.job, lambda _: run), lambda _: run)
        figures = replace(figures, job=job)
    return JobReport(figures, cluster, run)


def _arrays(figures: list[Figures], selections: Sequence[Selection]) -> list[list[Figures]]:
    """Return the tasks of each array together, but those that a word names by themselves."""
    alone = {
        one.job.job_id
        for one in figures
        for selection in selections
        if selection.job_id and selection.job_id.tasks and selection.matches(one.job)
    }
    groups: dict[str, list[Figures]] = {}
    for one in figures:
        array = one.job.array_job_id
        key = one.job.job_id if array is None or one.job.job_id in alone else f"{array}_"
        groups.setdefault(f"{one.job.cluster} {key}", []).append(one)
    return list(groups.values())


def _name(slurm: Slurm, found: Iterable[History]) -> str | None:
    names = sorted({one.job.cluster for one in found if one.job.cluster})
    return ",".join(names) if names else cluster_name_here(slurm.env)


ON_TIME = "time"
"""The end of a training that its time limit stopped in good order (docs/metrics.md)."""


@dataclass(frozen=True)
class Pace:
    """One start of a training; None is "not measured"."""

    steps: int
    """Steps that it took, by its last line: the metrics of the last few steps may be missing."""
    total_steps: int | None
    step_seconds: float | None
    """Of a step, without those of the first line: in these the loader and the compiler begin."""
    evaluations: int
    evaluation_seconds: float
    """Of an evaluation, the mean; 0 where there was none."""
    epochs: int | None
    """Epochs of the whole training."""
    evaluations_in_all: int
    """Evaluations of the whole training, by its settings."""
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
