"""What jobs use and used, as Slurm measures it: ended ones by accounting, running ones by asking their nodes.

What a job's run directory tells while it runs, and afterwards: the progress of a training, and samples of its use.

What became of jobs: one sacct call and one squeue call, side by side and merged; sstat only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from slurmgpu.errors import SlurmRefused, SlurmUnreachable, nearest
from slurmgpu.jobs.arrays import known
from slurmgpu.jobs.cause_files import with_cause, with_whole_exit_code
from slurmgpu.jobs.merge import Asked, told
from slurmgpu.jobs.select import Selection, job_of_record, run_of, scripts_of
from slurmgpu.jobs.settle import note_jobs
from slurmgpu.models.run import JobState, JobStatus, JobUse, LiveUse, Progress, Run
from slurmgpu.runs.metrics import folder_of, progress_of
from slurmgpu.runs.samples import summary
from slurmgpu.slurm import Accounting, JobId, Slurm, Step, StepUse, cluster_name_here, highest_exit_code

__all__ = [
    "Detail",
    "StatusReport",
    "last_known",
    "progress_text",
    "status",
    "with_live_use",
    "with_seen",
    "with_use_of_ended",
]


def with_use_of_ended(accounting: Accounting, jobs: list[JobStatus]) -> list[JobStatus]:
    """What ended jobs used; where accounting has not heard of a job's steps, nothing is known."""
    derived = {job.job_id: job.derived_exit_code for job in accounting.jobs}
    steps: dict[str, list[Step]] = {}
    for step in accounting.steps:
        steps.setdefault(step.job_id, []).append(step)
    return [
        job.model_copy(
            update={
                "used": _used(job, steps[job.job_id]),
                "derived_exit_code": highest_exit_code(derived.get(job.job_id), steps[job.job_id]),
            }
        )
        if job.state.is_final and job.job_id in steps
        else job
        for job in jobs
    ]


def _used(job: JobStatus, steps: list[Step]) -> JobUse:
    times = known(step.cpu_seconds for step in steps)
    return JobUse(
        max_rss=max(known(step.max_rss for step in steps), default=None),
        cpu_seconds=sum(times) if times else None,
        average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
        gpu_memory=max(known(step.gpu_memory for step in steps), default=None),
    )


def with_live_use(slurm: Slurm, jobs: list[JobStatus]) -> tuple[list[JobStatus], list[str]]:
    """What running jobs use now, by asking their nodes, and notes on those that did not answer."""
    running = [job.raw_id for job in jobs if job.state is JobState.RUNNING and job.raw_id is not None]
    try:
        steps, notes = slurm.live_use(running)
    except SlurmUnreachable as error:
        return jobs, [error.message]
    return [_with_use(job, [s for s in steps if s.job_id == job.raw_id]) for job in jobs], notes


def _with_use(job: JobStatus, steps: list[StepUse]) -> JobStatus:
    if not steps:
        return job
    times = [s.tasks * s.average_cpu for s in steps if s.tasks is not None and s.average_cpu is not None]
    use = LiveUse(
        max_rss=max(known(s.max_rss for s in steps), default=None),
        cpu_seconds=sum(times) if times else None,
        average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
    )
    return job.model_copy(update={"live": use})


_MOST = 100  # jobs whose files are looked at in one status: each costs some reads, on file systems that may be slow
_SILENT = 600.0  # seconds without a line of metrics that are worth a word


def with_seen(jobs: Iterable[JobStatus], *, ended: bool) -> list[JobStatus]:
    """The jobs with what is seen in their run directories: of those that run, and where ``ended`` of the others too."""
    return list(_seen(jobs, ended))


def _seen(jobs: Iterable[JobStatus], ended: bool) -> Iterator[JobStatus]:
    left = _MOST
    for job in jobs:
        looks = job.state in (JobState.RUNNING, JobState.COMPLETING) or (ended and job.state.is_final)
        script = next(iter(scripts_of(job)), None) if looks and left and job.raw_id is not None else None
        if script is None or job.raw_id is None:
            yield job
            continue
        left -= 1
        run_dir = Path(script).parent
        progress, sampled = progress_of(folder_of(run_dir, job)), summary(run_dir, job.raw_id)
        yield job.model_copy(update={"progress": progress, "sampled": sampled})


def progress_text(progress: Progress, *, running: bool) -> str:
    """``1200/9000 13% loss 1.23 eta 2h``, and for how long nothing has been heard of a training that runs."""
    total = progress.total_steps
    parts = [f"{progress.step}/{total}" if total else f"step {progress.step}"]
    if progress.share is not None:
        parts.append(f"{int(progress.share * 100)}%")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if not running:
        return " ".join(parts)
    if progress.ended is None and progress.age_seconds > _SILENT:
        parts.append(f"silent for {_about(progress.age_seconds)}")
    elif progress.eta_seconds is not None:
        parts.append(f"eta {_about(progress.eta_seconds)}")
    return " ".join(parts)


def _about(seconds: float) -> str:
    """``40s``, ``7m``, ``2h``, ``3d``: rounded, for an estimate says no more."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


DEFAULT_SINCE = timedelta(days=1)

Detail = Literal["usual", "use", "sparing"]
"""``use``: with what ended jobs used, which ``usual`` has for jobs that are named. ``sparing``: accounting is left alone as
long as the queue says of all jobs that are named that they have not ended."""
# Each is a file to be opened.
_MOST_CAUSES = 200


@dataclass(frozen=True)
class StatusReport:
    """Jobs as Slurm reports them at one moment."""

    cluster: str | None
    time: datetime
    """When Slurm was asked; of several answers, the oldest."""
    jobs: list[JobStatus]
    notes: list[str]
    """What the reader should know of the answer: what could not be asked, read or found."""
    missing: list[str] = field(default_factory=list)
    """The JOB words that lead to no job that Slurm knows, though it was asked."""
    unasked: list[str] = field(default_factory=list)
    """The JOB words of which it is not known whether there is such a job: queue or accounting did not answer."""
    no_answer: SlurmUnreachable | None = None
    """Why the queue could not be asked."""
    silence: str = ""
    """What did not answer, where that leaves words unasked."""
    age: float = 0.0
    """Seconds since then: another process of the user's may have asked."""
    since: datetime | None = None
    """Jobs that ended before may be missing; None: all that were asked for are there."""


def status(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    live: bool = False,
    detail: Detail = "usual",
    run_for: Callable[[JobStatus], Run | None] = run_of,
) -> StatusReport:
    """Ask Slurm about a user's jobs (None: everybody's), or about those selected: one squeue and one sacct.

    `since` (default: a day ago) bounds what accounting is asked for; jobs selected by id alone are found
    whatever their age. `run_for` finds the run of a job, where only that can tell its exit code.
    Raises SlurmUnreachable when neither the controller nor accounting answers.
    """
    first = len(slurm.shelf.ages) if slurm.shelf else 0
    now = datetime.now(timezone.utc)
    with_use = bool(selections) or live or detail == "use"
    asked = Asked(user, selections, since or now - DEFAULT_SINCE, with_use)
    jobs, doubts, accounting, queue = told(slurm, asked, now, sparing=detail == "sparing")
    notes = [*accounting.notes, *queue.notes]
    no_answer = queue.no_answer
    if no_answer is not None:
        if not accounting.available:
            raise no_answer
        notes.append(f"{no_answer.message}  What follows comes from accounting, and may be out of date.")
    if since is not None:
        jobs = [job for job in jobs if _counts(job, since, selections)]
    found, not_found, absent = (
        _selected(jobs, selections, no_answer is None, not accounting.silent, yours=user is not None)
        if selections
        else (jobs, [], [])
    )
    notes += not_found
    shown = {id(job) for job in found} if doubts else set()
    notes += [note for note, job in doubts if id(job) in shown]
    note_jobs(found, slurm.env)
    if asked.use and accounting.available:
        found = with_use_of_ended(accounting, found)
    found = with_seen(found, ended=asked.use)
    found = _as_runs_tell(found, _run_for(selections, run_for))
    if live:
        found, live_notes = with_live_use(slurm, found)
        notes += live_notes
    silence = no_answer.message if no_answer else accounting.notes[0] if accounting.silent else ""
    missing, unasked = ([], absent) if silence else (absent, [])
    age = slurm.oldest(first)
    return StatusReport(
        cluster=_cluster(slurm, jobs),
        time=now - timedelta(seconds=age),
        jobs=sorted(found, key=_order),
        notes=notes,
        missing=missing,
        unasked=unasked,
        no_answer=no_answer,
        silence=silence if unasked else "",
        age=age,
        since=_from(asked, accounting.available, now),
    )


def last_known(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    detail: Detail = "usual",
) -> StatusReport | None:
    """What Slurm said when this was asked last on this machine, without asking; None where it never was.

    For people to look at while Slurm is silent: what has become of the jobs since, nobody knows.
    """
    if slurm.shelf is None:
        return None
    kept = Slurm(slurm.run, slurm.env, shelf=replace(slurm.shelf, kept_only=True, ages=[], heard={}))
    try:
        return status(kept, user=user, selections=selections, since=since, detail=detail)
    except (SlurmUnreachable, SlurmRefused):
        return None


def _from(asked: Asked, accounting: bool, now: datetime) -> datetime | None:
    """From when on every job that has ended is known: the queue alone forgets each after a while."""
    if not accounting:
        return now
    return None if asked.selections and all(one.id for one in asked.selections) else asked.since


def _as_runs_tell(jobs: list[JobStatus], run_for: Callable[[JobStatus], Run | None]) -> list[JobStatus]:
    """Jobs with what their scripts left in their run directories: the whole exit code, and of the newest the cause."""
    jobs = [with_whole_exit_code(job, run_for) for job in jobs]
    failed = sorted(
        (job.raw_id for job in jobs if job.state.is_final and job.raw_id is not None), reverse=True
    )
    newest = set(failed[:_MOST_CAUSES])
    return [with_cause(job, run_for) if job.raw_id in newest else job for job in jobs]


def _run_for(
    selections: Sequence[Selection], otherwise: Callable[[JobStatus], Run | None]
) -> Callable[[JobStatus], Run | None]:
    def find(job: JobStatus) -> Run | None:
        named = (selection.run for selection in selections if selection.run and selection.matches(job))
        return next(named, None) or otherwise(job)

    return find


def _counts(job: JobStatus, since: datetime, selections: Sequence[Selection]) -> bool:
    """Whether a job has not ended before a moment, or is named by id: the queue remembers jobs for some minutes."""
    named = any(selection.name is None and selection.matches(job) for selection in selections)
    return named or not job.state.is_final or job.end is None or job.end >= since


def _selected(
    jobs: list[JobStatus],
    selections: Sequence[Selection],
    queue_told: bool,
    accounting_told: bool,
    *,
    yours: bool,
) -> tuple[list[JobStatus], list[str], list[str]]:
    """The jobs that the selections mean, notes on those that lead to none, and their words."""
    found = [job for job in jobs if any(selection.matches(job) for selection in selections)]
    notes, missing = [], []
    for selection in selections:
        if any(selection.matches(job) for job in found):
            continue
        missing.append(selection.text)
        told = f"job {selection.text}: neither the queue nor accounting knows it"
        if not queue_told:
            told = f"job {selection.text}: accounting does not know it, and the queue could not be asked: it may be there"
        elif not accounting_told:
            told = f"job {selection.text}: the queue does not list it, and accounting could not be asked: it may have ended"
        elif selection.name is not None:
            whose = " of yours" if yours else ""
            near = nearest(selection.name, {job.name for job in jobs if job.name})
            told = f"there is no job{whose} named {selection.name!r} in the queue or in recent accounting"
            told += f"; did you mean {near!r}?" if near else ""
        notes.append(told)
        if selection.name is None:
            found.append(_missing(selection))
    return found, notes, missing


def _missing(selection: Selection) -> JobStatus:
    """The record of a job that Slurm does not know: never a success, never a failure."""
    run = selection.run
    if run is None:
        return JobStatus(job_id=selection.text, state=JobState.UNKNOWN, source="none")
    told = {"cluster": run.cluster, "submit": run.submitted_at, "script": run.script_path}
    return job_of_record(run).model_copy(update=told)


def _cluster(slurm: Slurm, jobs: list[JobStatus]) -> str | None:
    names = sorted({job.cluster for job in jobs if job.cluster})
    return ",".join(names) if names else cluster_name_here(slurm.env)


def _order(job: JobStatus) -> tuple[bool, int, int, str]:
    """Unfinished jobs first, each kind by id."""
    if job.job_id.isdecimal():
        return job.state.is_final, int(job.job_id[:18]), 1 << 62, job.job_id
    job_id = JobId.parse(job.job_id)
    number = job_id.number if job_id else 0
    task = int(job_id.tasks) if job_id and job_id.tasks and job_id.tasks.isdigit() else 1 << 62
    return job.state.is_final, number, task, job.job_id
