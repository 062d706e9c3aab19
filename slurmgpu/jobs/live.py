"""What the screen shows, asked for and read: Slurm through the answers that a user's processes share, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable
from slurmgpu.jobs.causes import cause_lines, cause_of, is_own_doing
from slurmgpu.jobs.gpus_now import GpusNow, gpus_now
from slurmgpu.jobs.log_files import Log, logs_of
from slurmgpu.jobs.look import StatusReport, last_known, status, with_progress
from slurmgpu.jobs.why.explain import explain
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.runs.directory import read_plan
from slurmgpu.runs.metrics import folder_of, losses, progress_of
from slurmgpu.runs.samples import GpuSeries, gpu_series, summary
from slurmgpu.slurm import JobId, Slurm

__all__ = ["Detail", "Seen", "Source", "said_of"]


PACE = 30.0
"""Seconds between two looks at the queue, as those of ``status --watch``: who looks at the same moment is told the same."""


class Seen(NamedTuple):
    """The jobs as Slurm told them."""

    report: StatusReport
    why_old: str = ""
    """Why this is what Slurm said before, and not what it says now."""


class Detail(NamedTuple):
    """What the files of one job's run tell."""

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
    _last: Seen | None = None

    def jobs(self, *, anew: bool = False) -> Seen:
        """The jobs, of two questions at most; where Slurm is silent, the last that it said.

        ``anew``: not older than the poll floor, since a person has asked for it. Raises SlurmUnreachable where Slurm is
        silent and has never told.
        """
        shelf = self.looking.shelf
        if shelf is not None:
            shelf.good_for = shelf.floor if anew or self._last is None else self.pace
            shelf.ages.clear()
        user, since = None if self.all_users else self.user, self.since()
        try:
            self._last = Seen(status(self.looking, user=user, since=since, run_for=self.quick_run))
        except SlurmUnreachable as error:
            self._last = self._as_before(error, user, since)
        return self._last

    def _as_before(self, error: SlurmUnreachable, user: str | None, since: datetime | None) -> Seen:
        if self._last is not None:
            report = self._last.report
            passed = datetime.now(timezone.utc) - report.time
            return Seen(replace(report, age=max(report.age, passed / timedelta(seconds=1))), error.message)
        known = last_known(self.looking, user=user, since=since)
        if known is None:
            raise error
        return Seen(known, error.message)

    def detail(self, job: JobStatus) -> Detail:
        """What the job's files tell now; Slurm is not asked."""
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
        """The run of a job as its own submission made it; None where there is none that can be read."""
        try:
            run = self.find_run(job)
        except InvalidInput:
            return None
        number = JobId.parse(job.job_id)
        return run.as_of(number.number) if run is not None and number is not None else run

    def cause(self, job: JobStatus) -> list[str]:
        """The first cause of a job that failed, in lines; [] of one that did not, or that tells nothing."""
        found = cause_of(job, self.run_of(job))
        return [] if found is None or is_own_doing(job, found) else cause_lines(found)

    def why(self, job: JobStatus) -> list[str]:
        """Why a job waits, in the figures of this moment: some questions to Slurm, so that it is asked by hand.

        Raises SlurmUnreachable where Slurm does not answer.
        """
        why = explain(job, self.looking.present(), datetime.now(timezone.utc), self.environ)
        lines = [why.sentence, *(f"- {fact.text}" for fact in why.facts if fact.text not in why.sentence)]
        for mend in why.mends:
            lines += [f"to do: {mend.text}", *([f"    {mend.command}"] if mend.command else [])]
        return lines + [f"? {what}: {told}" for what, told in why.unknown.items()]

    def logs(self, job: JobStatus) -> list[Log]:
        """The job's log files; Slurm is not asked."""
        return logs_of(self.run_of(job), job)

    def gpus(self) -> tuple[GpusNow, float]:
        """Which GPUs are free, and how old that is in seconds."""
        slurm = Slurm(self.looking.run, self.looking.env)
        if self.looking.shelf is not None:
            shelf = self.looking.shelf
            slurm.shelf = replace(shelf, good_for=max(self.pace, shelf.floor), ages=[], heard={})
        return gpus_now(slurm.present(), self.user), slurm.oldest()


def said_of(error: SlurmGpuError) -> str:
    """An error in a line or two."""
    return f"{error.message} ({error.hint})" if error.hint else error.message
