"""The run directory that a word or a job leads to, and whether all jobs of a run have ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path

from slurmgpu.errors import (
    InvalidInput,
    OutcomeUnknown,
    SlurmGpuError,
    SlurmRefused,
    SlurmUnreachable,
    did_you_mean,
)
from slurmgpu.files.run_record import read_run
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import (
    IN_FLIGHT,
    RUN_MARKS,
    STAMPED,
    Selection,
    belongs,
    is_of_this_cluster,
    names_folder,
    owner,
    run_directories,
    run_of,
    select,
    user_number,
)
from slurmgpu.jobs.view import reason, word_of
from slurmgpu.models.run import EXIT_CODE_FILE, JobState, JobStatus, Run
from slurmgpu.slurm import MORE_UNREAD, JobId, Slurm, cluster_name_here

__all__ = [
    "RunsOf", "check_at_rest", "completed_tasks", "find_run", "newest_run", "run_of_job", "runs_that_ended",
]  # fmt: skip

RunsOf = Callable[[Path], Path]
"""The folder of run directories that belongs to a work folder."""

_MOST_LOOKED_INTO = 500  # a folder of runs may be years old, and on a slow disk


def find_run(slurm: Slurm, word: str, runs_of: RunsOf, user: str | None) -> Path:
    """Return the run directory that a word means, the task's own for one task of an array.

    Slurm is asked about job ids and names; what it no longer knows is looked for among the runs of this folder.

    Raises:
        InvalidInput: a path that is not a run directory.
        SlurmGpuError: nobody knows such a run; SlurmUnreachable when Slurm could not be asked.
    """
    path = Path(word)
    if names_folder(word) and path.is_dir():
        path = path.parent if path.name == "checkpoints" else path
        if any((path / mark).exists() for mark in RUN_MARKS):
            return path
        raise InvalidInput(
            f"{word} is not a run directory: it has none of {', '.join(RUN_MARKS)}",
            hint="give a job id, a job name, or a directory that slurmgpu submit or slurmgpu run made",
        )
    if "/" in word:
        raise InvalidInput(
            f"{word}: there is no such directory", hint="give a job id, a job name, or a run directory"
        )
    (selection,) = select([word])
    runs = runs_of(Path.cwd())

    def left_behind() -> Path | None:
        """Return the newest run directory of this name, folder name or job id."""
        for path in run_directories(runs):
            if selection.name is not None and selection.name in (path.name, _name_in(path)):
                return path
            record, job_id = _record(path), selection.job_id
            if record and (job_id.number in record.job_ids if job_id else record.name == selection.name):
                return path
        return None

    # A record tells a job id as well as Slurm does, which may take a minute not to answer.
    found, error = left_behind() if selection.job_id else None, SlurmGpuError("")
    record = _record(found) if found else None
    if record is None or not is_of_this_cluster(record, slurm.env):
        found, error = _by_slurm(slurm, selection, runs_of, user)
    found = found or left_behind()
    if found is None:
        raise type(error)(
            f"{word}: there is no run of yours of that name or id in {runs}. {error.message}",
            hint=did_you_mean(word, {_name_in(path) for path in run_directories(runs)})
            + "give the run directory itself; slurmgpu submit and slurmgpu run print it",
        )
    task = selection.job_id.tasks if selection.job_id else None
    return found / task if task and task.isdecimal() else found


def _by_slurm(
    slurm: Slurm, selection: Selection, runs_of: RunsOf, user: str | None
) -> tuple[Path | None, SlurmGpuError]:
    """Return the newest run of the jobs that Slurm knows by this word, or why there is none."""
    try:
        report = status(slurm, user=user, selections=[selection])
    except SlurmUnreachable as error:
        return None, error
    jobs = [job for job in report.jobs if job.source != "none"]
    known = [run for job in jobs if (run := run_of(job) or _of_work_dir(job, runs_of)) is not None]
    if known:
        return Path(max(known, key=lambda run: run.submitted_at).run_dir), SlurmGpuError("")
    if not jobs and report.no_answer is not None:
        return None, report.no_answer
    why = "Slurm knows the job, but not its run directory" if jobs else "Slurm knows no such job of yours"
    return None, SlurmGpuError(why)


def _name_in(path: Path) -> str:
    """Return the job's name that a run directory's own name begins with; the whole name where it has none."""
    stamped = STAMPED.fullmatch(path.name)
    return stamped[1] if stamped else path.name


def _record(path: Path) -> Run | None:
    try:
        return read_run(path)
    except InvalidInput:
        return None  # a local run has none


def run_of_job(job: JobStatus, runs_of: RunsOf) -> Run | None:
    """Return the run of a job: Slurm forgets the script's path soon after its end, and the run directory has the id.

    It is looked for among the runs of this folder, then among those of the job's own work folder.
    """
    return run_of(job) or _among(runs_of(Path.cwd()), job) or _of_work_dir(job, runs_of)


def runs_that_ended(runs_of: RunsOf) -> Callable[[JobStatus], Run | None]:
    """Return a `run_of_job` for many jobs: by the files that scripts leave at their end, so that each folder is read once."""

    @cache
    def by_trace(runs: Path, owner: int | None) -> dict[str, Path]:
        newest = islice(run_directories(runs, owner), _MOST_LOOKED_INTO)
        return {
            trace.name: run_dir
            for run_dir in newest
            for pattern in (f"{EXIT_CODE_FILE}*", f"[0-9]*/{EXIT_CODE_FILE}*")
            for trace in run_dir.glob(pattern)
        }

    def find(job: JobStatus) -> Run | None:
        for folder in (Path.cwd(), *([Path(job.work_dir)] if job.work_dir else [])):
            run_dir = by_trace(runs_of(folder), user_number(job.user)).get(f"{EXIT_CODE_FILE}{job.raw_id}")
            run = _record(run_dir) if run_dir else None
            if run is not None and belongs(run, job):
                return run
        return None

    return find


def _of_work_dir(job: JobStatus, runs_of: RunsOf) -> Run | None:
    return _among(runs_of(Path(job.work_dir)), job) if job.work_dir else None


def _among(runs: Path, job: JobStatus) -> Run | None:
    records = map(_record, run_directories(runs, user_number(job.user)))
    return next((run for run in records if run is not None and belongs(run, job)), None)


def newest_run(runs: Path) -> Path:
    """Return the newest run directory with checkpoints in it; without any, the newest that trains.

    Raises:
        SlurmGpuError: there is none.
    """
    folders = list(run_directories(runs))
    saved = (
        path for path in folders if any(path.glob("checkpoints")) or any(path.glob("[0-9]*/checkpoints"))
    )
    trains = ("slurmgpu_training", "slurmgpu")
    training = (path for path in folders if any((path / "code" / one).is_dir() for one in trains))
    found = next(saved, None) or next(training, None)
    if found is None:
        raise SlurmGpuError(
            f"no run in {runs} trains" if folders else f"there are no runs in {runs}",
            hint="name a run directory, a job id or a job name",
        )
    return found


def check_at_rest(slurm: Slurm, run: Run, now: datetime) -> None:
    """See in the queue that no job of the run waits or runs, whoever submitted it.

    Raises:
        SlurmGpuError: one does.
        OutcomeUnknown: the queue could not be asked, is another cluster's, or may yet receive the job.
    """
    several = (os.environ if slurm.env is None else slurm.env).get("SLURM_CLUSTERS")
    here = cluster_name_here(slurm.env)
    if not several and here is not None and run.cluster not in (None, here):
        raise OutcomeUnknown(
            f"job {run.job_id} of {run.run_dir} is on cluster {run.cluster}, and this machine asks {here}: "
            "whether the job still waits or runs cannot be seen from here",
            hint=f"nothing was submitted; resume it on a login node of {run.cluster}",
        )
    try:
        queued, notes = slurm.queue(owner(run))
    except (SlurmUnreachable, SlurmRefused) as error:
        raise OutcomeUnknown(
            f"cannot tell whether a job of {run.run_dir} is still queued or running: {error.message}",
            hint="nothing was submitted; try again when Slurm answers",
        ) from None
    live = [job for job in queued if not job.state.is_final and belongs(run, job)]
    if live:
        job, number = live[0], live[0].job_id
        if job.state is JobState.COMPLETING:
            doing = "is ending (COMPLETING), its last processes still run"
            hint = "nothing was submitted; try again in a moment"
        elif job.state.is_waiting and word_of(job.reason).startswith("JobHeld"):
            doing = f"is held: {reason(job)}"
            hint = f"nothing was submitted; scontrol release {number} lets it start"
        elif job.state.is_waiting:
            doing = f"still waits in the queue: {job.state.value}"
            hint = f"it goes on by itself; to change what it asks for: slurmgpu cancel {number}, then resume"
        else:
            doing = f"has not ended: {job.state.value}"
            hint = f"slurmgpu logs --follow {number} shows it; slurmgpu cancel {number} ends it"
        raise SlurmGpuError(f"job {number} of {run.run_dir} {doing}", hint=hint)
    words = [MORE_UNREAD, *map(str, run.job_ids)]
    unread = [note for note in notes if any(word in note for word in words)]
    if unread:
        raise OutcomeUnknown(
            f"cannot tell whether a job of {run.run_dir} is still queued or running: {unread[0]}",
            hint="nothing was submitted; look with: squeue --me",
        )
    if run.job_id is None and now - run.submitted_at < IN_FLIGHT:
        raise OutcomeUnknown(
            f"the last submission of {run.run_dir} had no answer, and its job may still appear in the queue",
            hint=f"nothing was submitted; try again after {(run.submitted_at + IN_FLIGHT).astimezone():%H:%M}",
        )


def completed_tasks(slurm: Slurm, run: Run) -> set[str]:
    """Return the tasks that have completed in any of the run's jobs; '' for a job that is not an array.

    What neither the queue nor accounting remembers is not among them.
    """
    selections = [Selection(str(number), job_id=JobId(number)) for number in run.job_ids]
    jobs = status(slurm, user=owner(run), selections=selections).jobs if selections else []
    return {job.array_tasks or "" for job in jobs if job.state is JobState.COMPLETED and belongs(run, job)}
