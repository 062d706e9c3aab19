"""From JOB words, or from a time, to reports: what Slurm is asked, and which run directories tell more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.jobs.causes import with_cause, with_whole_exit_code
from slurmgpu.jobs.look import status
from slurmgpu.jobs.report.advising import Advice, Part, Proposal, advise
from slurmgpu.jobs.report.figures import Figures, figures_of, read_training, together
from slurmgpu.jobs.select import Selection
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.runs.metrics import folder_of
from slurmgpu.runs.samples import summary
from slurmgpu.slurm import Histories, History, JobId, Sampling, Slurm, Start, cluster_name_here, even

__all__ = ["DEFAULT_SINCE", "JobReport", "Reports", "looked_into", "report_on_jobs", "report_since"]

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
