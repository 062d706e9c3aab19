"""The source of screens and pages: jobs, one job's files, free GPUs; and the changes to a job that they offer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple, cast

from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable
from slurmgpu.jobs.cancel import cancel
from slurmgpu.jobs.causes import cause_lines, cause_of, is_own_doing
from slurmgpu.jobs.gpus_now import GpusNow, gpus_now
from slurmgpu.jobs.log_files import Log, logs_of
from slurmgpu.jobs.look import StatusReport, last_known, status, with_progress
from slurmgpu.jobs.select import select
from slurmgpu.jobs.table import lines
from slurmgpu.jobs.view import Line, about, words_of
from slurmgpu.jobs.why.explain import explain
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.runs.directory import read_plan
from slurmgpu.runs.metrics import folder_of, losses, progress_of
from slurmgpu.runs.samples import GpuSeries, gpu_series, summary
from slurmgpu.slurm import JobId, Slurm, Verb

__all__ = [
    "ACTIONS", "Action", "Detail", "Outcome", "Snapshot", "Source", "error_text", "perform", "question", "refusal",
]  # fmt: skip

_LEAST_PAUSE = 2.0
_MOST_CAUSES = 500
PACE = 30.0
"""Seconds between two looks at the queue, as those of ``status --watch``: who looks at the same moment is told the same."""


class Snapshot(NamedTuple):
    """The jobs as Slurm told them."""

    report: StatusReport
    why_old: str = ""
    """Why this is what Slurm said before, and not what it says now."""


class Detail(NamedTuple):
    """One job with what the files of its run tell."""

    job: JobStatus
    run: Run | None
    plan: Plan | None
    plan_note: str
    """Why there is no plan."""
    losses: list[tuple[int, float]]
    gpus: list[GpuSeries]


@dataclass
class Source:
    """Asked from threads of the screen: each question may take as long as Slurm, or a file system, does."""

    looking: Slurm
    """Its answers are shared, and may be some seconds old."""
    acting: Slurm
    """Asked anew: for what changes something."""
    user: str
    quick_run: Callable[[JobStatus], Run | None]
    """Finds the run of one of many jobs."""
    find_run: Callable[[JobStatus], Run | None]
    """Finds it however long that takes."""
    environ: Mapping[str, str]
    resume: Callable[[str], tuple[bool, str]]
    """Submits the run of a job again; whether that went well, and what was said."""
    all_users: bool = False
    since: Callable[[], datetime | None] = lambda: None
    pace: float = PACE
    _last: Snapshot | None = None
    _told_at: float = 0.0
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _causes: dict[str, list[str]] = field(default_factory=dict)

    def jobs(self, *, anew: bool = False) -> Snapshot:
        """Return the jobs, of two questions at most; where Slurm is silent, the last that it said.

        ``anew``: not older than the poll floor, since a person has asked for it. Raises SlurmUnreachable where Slurm is
        silent and has never told.
        """
        shelf = self.looking.shelf
        if shelf is not None:
            shelf.good_for = shelf.floor if anew or self._last is None else self.pace
            shelf.ages.clear()
        user, since = None if self.all_users else self.user, self.since()
        try:
            self._last = Snapshot(status(self.looking, user=user, since=since, run_for=self.quick_run))
        except SlurmUnreachable as error:
            if self._last is not None:
                report = self._last.report
                passed = datetime.now(timezone.utc) - report.time
                known = replace(report, age=max(report.age, passed / timedelta(seconds=1)))
            elif (kept := last_known(self.looking, user=user, since=since)) is not None:
                known = kept
            else:
                raise
            self._last = Snapshot(known, error.message)
        self._told_at = time.monotonic()
        return self._last

    def seen(self, *, anew: bool = False) -> Snapshot:
        """Return the user's own jobs as the last look found them, whoever looked; at most as old as the pace.

        ``anew``: at most as old as the least pause. While one thread waits for Slurm, the others get what was seen before.
        Raises SlurmUnreachable where nothing was.
        """
        known = self._last
        least = _LEAST_PAUSE if anew else self.pace
        due = known is None or time.monotonic() - self._told_at >= least
        if due and self._looking.acquire(blocking=known is None or anew):
            try:
                due = self._last is None or time.monotonic() - self._told_at >= least
                known = self.jobs(anew=anew) if due else self._last
            finally:
                self._looking.release()
        assert known is not None
        own = [job for job in known.report.jobs if job.user == self.user]
        return known._replace(report=replace(known.report, jobs=own))

    def line(self, job_id: str) -> Line | None:
        """Return the line of a job, of a task or of an array; None where none of one's own has this id."""
        # An id that is not known yet may have been submitted since.
        for anew in (False, True) if JobId.parse(job_id) is not None else (False,):
            report = self.seen(anew=anew).report
            for each_task in (False, True):
                found = lines(report.jobs, each_task=each_task, since=report.since)
                line = next((one for one in found if one.job.job_id == job_id), None)
                if line is not None:
                    return line
        return None

    def detail(self, job: JobStatus) -> Detail:
        """Return what the job's files tell now; Slurm is not asked."""
        (job,) = with_progress([job], ended=True)
        run = self.run_of(job)
        if run is None:
            return Detail(job, None, None, "", [], [])
        plan, plan_note = None, ""
        try:
            plan = read_plan(Path(run.run_dir))
        except InvalidInput as error:
            plan_note = error.message
        run_dir = Path(run.run_dir)
        if job.progress is None and job.state.is_final:  # Slurm has forgotten where its script was
            seen = {
                "progress": progress_of(folder_of(run_dir, job)),
                "sampled": None if job.raw_id is None else summary(run_dir, job.raw_id),
            }
            job = job.model_copy(update=seen)
        gpus = gpu_series(run_dir, job.raw_id) if job.raw_id is not None else []
        return Detail(job, run, plan, plan_note, losses(folder_of(run_dir, job)), gpus)

    def run_of(self, job: JobStatus) -> Run | None:
        """Return the run of a job as its own submission made it; None where there is none that can be read."""
        try:
            run = self.find_run(job)
        except InvalidInput:
            return None
        number = JobId.parse(job.job_id)
        return run.as_of(number.number) if run is not None and number is not None else run

    def cause(self, job: JobStatus) -> list[str]:
        """Return the first cause of a job that failed, in lines; [] of one that did not, or that tells nothing. Read once."""
        key = f"{job.cluster} {job.job_id} {job.state.value} {job.restarts}"
        if key not in self._causes:
            if len(self._causes) >= _MOST_CAUSES:
                self._causes.clear()
            found = cause_of(job, self.run_of(job))
            self._causes[key] = [] if found is None or is_own_doing(job, found) else cause_lines(found)
        return self._causes[key]

    def why(self, job: JobStatus) -> list[str]:
        """Return why a job waits, in the figures of this moment: some questions to Slurm, so that it is asked by hand.

        Raises SlurmUnreachable where Slurm does not answer.
        """
        why = explain(job, self.looking.present(), datetime.now(timezone.utc), self.environ)
        told = [why.sentence, *(f"- {fact.text}" for fact in why.facts if fact.text not in why.sentence)]
        for mend in why.mends:
            told += [f"to do: {mend.text}", *([f"    {mend.command}"] if mend.command else [])]
        return told + [f"? {what}: {why_not}" for what, why_not in why.unknown.items()]

    def logs(self, job: JobStatus) -> list[Log]:
        """Return the job's log files; Slurm is not asked."""
        return logs_of(self.run_of(job), job)

    def gpus(self) -> tuple[GpusNow, float]:
        """Return which GPUs are free, and how old that is in seconds."""
        slurm = Slurm(self.looking.run, self.looking.env)
        if self.looking.shelf is not None:
            shelf = self.looking.shelf
            slurm.shelf = replace(shelf, good_for=max(self.pace, shelf.floor), ages=[], heard={})
        return gpus_now(slurm.present(), self.user), slurm.oldest()


def error_text(error: SlurmGpuError) -> str:
    """Return an error in a line or two."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


class Outcome(NamedTuple):
    """The outcome of a change."""

    good: bool
    text: str


class Action(NamedTuple):
    """One thing that can be done."""

    key: str
    verb: str
    then: str
    """The consequence, as the question names it."""

    def barred(self, job: JobStatus) -> str:
        """Return why a job in this state cannot be asked for it; empty where it can."""
        state, verb = job.state, self.verb
        if verb in ("hold", "release") and not state.is_waiting:
            return f"it does not wait: {state.value}"
        if verb == "release" and not any(about(word) == "held" for word in words_of(job.reason)):
            return "it is not held"
        if verb == "requeue" and state not in (JobState.RUNNING, JobState.SUSPENDED, JobState.CONFIGURING):
            return f"it does not run: {state.value}"
        if verb == "resume" and not state.is_final:
            return f"it has not ended: {state.value}"
        if verb == "cancel" and state is JobState.UNKNOWN:
            return "its state is not known"
        return f"it has ended: {state.value}" if verb == "cancel" and state.is_final else ""


ACTIONS = (
    Action("C", "cancel", "Its processes are ended."),
    Action("H", "hold", "It will not start before it is released."),
    Action("U", "release", "It may start as soon as there is room."),
    Action("Q", "requeue", "Its processes are ended, and it waits for its turn again."),
    Action("R", "resume", "Its run is submitted again, and goes on from its checkpoints."),
)


def refusal(act: Action, job: JobStatus, user: str) -> str:
    """Return why this is not done, nor asked; empty where it may be."""
    name = _named(job)
    if job.user != user:
        whose = printable(job.user) if job.user else "somebody whose name is not known"
        return f"{name} belongs to {whose}: only jobs of yours can be changed here"
    barred = act.barred(job)
    return f"{name} cannot be asked to {act.verb}: {barred}" if barred else ""


def question(act: Action, line: Line) -> str:
    """Return the question before it is done, with the job's id and name."""
    tasks = f", {line.tasks}" if line.tasks else ""
    return f"{act.verb.capitalize()} {_named(line.job)}, {line.job.state.value}{tasks}?\n{act.then}"


def _named(job: JobStatus) -> str:
    return f"job {job.job_id} ({printable(job.name)})"


def perform(act: Action, job: JobStatus, source: Source) -> Outcome:
    """Do it, and say what became of it; nothing of somebody else's is touched, whoever asks."""
    name = _named(job)
    if barred := refusal(act, job, source.user):
        return Outcome(False, barred)
    try:
        if act.verb == "cancel":
            results = cancel(source.acting, select([job.job_id]), user=source.user)
            good = all(one.outcome in ("cancelled", "ending", "finished") for one in results)
            return Outcome(good, "; ".join(printable(one.message) for one in results))
        if act.verb == "resume":
            run = source.run_of(job)
            if run is None:
                return Outcome(False, f"{name} has no run directory that is known here")
            return Outcome(*source.resume(job.job_id if job.array_tasks else run.run_dir))
        # As scontrol takes an id: without an array's limit, and of a heterogeneous job the whole.
        number, target = (
            JobId.parse(job.job_id),
            job.job_id.split("%")[0] + ("]" if "%" in job.job_id else ""),
        )
        if "+" in job.job_id and number is not None:
            target = str(number.number)
        said = source.acting.control(cast("Verb", act.verb), [target])
    except SlurmGpuError as error:
        return Outcome(False, error_text(error))
    if said.lost:
        return Outcome(False, f"{name}: whether Slurm took it is not known; it said: {said.text}")
    if said.text:
        return Outcome(False, f"{name}: Slurm said: {said.text}")
    return Outcome(True, f"{name}: Slurm was asked to {act.verb} it")
