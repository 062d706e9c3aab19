"""Which run directory a word means, and whether the job of a run has ended."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
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
    Selection,
    belongs,
    is_of_this_cluster,
    names_folder,
    owner,
    run_of,
    select,
    user_number,
)
from slurmgpu.jobs.settle import IN_FLIGHT
from slurmgpu.jobs.view import reason
from slurmgpu.jobs.waits import word_of
from slurmgpu.models.run import EXIT_CODE_FILE, RUN_FILE, JobState, JobStatus, Run
from slurmgpu.slurm import MORE_UNREAD, JobId, Slurm, cluster_name_here

__all__ = [
    "RunsOf",
    "check_at_rest",
    "completed_tasks",
    "find_run",
    "newest_run",
    "run_directories",
    "run_of_job",
    "runs_that_ended",
]


RunsOf = Callable[[Path], Path]
"""The folder of run directories that belongs to a work folder."""

# What submission and local runs put into a run directory, and what is in it by the entrypoint alone.
_MARKS = (RUN_FILE, "script.sbatch", "train.json", "checkpoints")
_TRAINS = ("slurmgpu_training", "slurmgpu")
# A folder of runs may be years old, and on a slow disk.
_MOST_LOOKED_INTO = 500
_STAMPED = re.compile(r"(.+)-(\d{8}T\d{6}Z)-[0-9a-f]+", re.ASCII)


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
        if any((path / mark).exists() for mark in _MARKS):
            return path
        raise InvalidInput(
            f"{word} is not a run directory: it has none of {', '.join(_MARKS)}",
            hint="give a job id, a job name, or a directory that slurmgpu submit or slurmgpu run made",
        )
    if "/" in word:
        raise InvalidInput(
            f"{word}: there is no such directory", hint="give a job id, a job name, or a run directory"
        )
    (selection,) = select([word])
    runs = runs_of(Path.cwd())
    # A record tells a job id as well as Slurm does, which may take a minute not to answer.
    found, asked = _left_behind(selection, runs) if selection.job_id else None, SlurmGpuError("")
    record = _record(found) if found else None
    if record is None or not is_of_this_cluster(record, slurm.env):
        found, asked = _by_slurm(slurm, selection, runs_of, user)
    found = found or _left_behind(selection, runs)
    if found is None:
        raise type(asked)(
            f"{word}: there is no run of yours of that name or id in {runs}. {asked.message}",
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


def _left_behind(selection: Selection, runs: Path) -> Path | None:
    """Return the newest run directory of this name, folder name or job id."""
    return next((path for path in run_directories(runs) if _means(selection, path)), None)


def _name_in(path: Path) -> str:
    """Return the job's name that a run directory's own name begins with; the whole name where it has none."""
    stamped = _STAMPED.fullmatch(path.name)
    return stamped[1] if stamped else path.name


def _means(selection: Selection, path: Path) -> bool:
    if selection.name is not None and selection.name in {path.name, _name_in(path)}:
        return True
    record = _record(path)
    if record is None:
        return False
    return selection.job_id.number in record.job_ids if selection.job_id else record.name == selection.name


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
    """As `run_of_job`, for many jobs: by the files that scripts leave at their end, so that each folder is read once."""

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
    training = (path for path in folders if any((path / "code" / one).is_dir() for one in _TRAINS))
    found = next(saved, None) or next(training, None)
    if found is None:
        raise SlurmGpuError(
            f"no run in {runs} trains" if folders else f"there are no runs in {runs}",
            hint="name a run directory, a job id or a job name",
        )
    return found


def run_directories(runs: Path, owner: int | None = None) -> Iterator[Path]:
    """Yield the run directories of a user (None: this one) in a folder, the newest first.

    By the time in their names; one made by hand by its last change. The folder may be shared, and a word must lead to
    nothing that somebody else has laid there.
    """
    owner = os.getuid() if owner is None else owner
    dated = []
    for path in runs.iterdir() if os.access(runs, os.R_OK | os.X_OK) and runs.is_dir() else ():
        try:
            if path.lstat().st_uid != owner:
                continue
            stamped = _STAMPED.fullmatch(path.name)
            if stamped:
                dated.append((stamped[2], path.name, path))
            elif any((path / mark).exists() for mark in _MARKS):
                changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
                dated.append((f"{changed:%Y%m%dT%H%M%SZ}", path.name, path))
        except OSError:
            continue  # removed this moment, or closed to this user
    yield from (path for _, _, path in sorted(dated, reverse=True))


def check_at_rest(slurm: Slurm, run: Run, now: datetime) -> None:
    """See in the queue that no job of the run waits or runs, whoever submitted it.

    Raises:
        SlurmGpuError: one does.
        OutcomeUnknown: the queue could not be asked, is another cluster's, or may yet receive the job.
    """
    _check_cluster(run, slurm.env)
    try:
        queued, notes = slurm.queue(owner(run))
    except (SlurmUnreachable, SlurmRefused) as error:
        raise OutcomeUnknown(
            f"cannot tell whether a job of {run.run_dir} is still queued or running: {error.message}",
            hint="nothing was submitted; try again when Slurm answers",
        ) from None
    live = [job for job in queued if not job.state.is_final and belongs(run, job)]
    if live:
        raise _lives(live[0], run)
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


def _check_cluster(run: Run, env: Mapping[str, str] | None) -> None:
    several = (os.environ if env is None else env).get("SLURM_CLUSTERS")
    here = cluster_name_here(env)
    if several or here is None or run.cluster is None or run.cluster == here:
        return
    raise OutcomeUnknown(
        f"job {run.job_id} of {run.run_dir} is on cluster {run.cluster}, and this machine asks {here}: "
        "whether the job still waits or runs cannot be seen from here",
        hint=f"nothing was submitted; resume it on a login node of {run.cluster}",
    )


def _lives(job: JobStatus, run: Run) -> SlurmGpuError:
    number = job.job_id
    if job.state is JobState.COMPLETING:
        said = "is ending (COMPLETING), its last processes still run"
        act = "nothing was submitted; try again in a moment"
    elif job.state.is_waiting and word_of(job.reason).startswith("JobHeld"):
        said = f"is held: {reason(job)}"
        act = f"nothing was submitted; scontrol release {number} lets it start"
    elif job.state.is_waiting:
        said = f"still waits in the queue: {job.state.value}"
        act = f"it goes on by itself; to change what it asks for: slurmgpu cancel {number}, then resume"
    else:
        said = f"has not ended: {job.state.value}"
        act = f"slurmgpu logs --follow {number} shows it; slurmgpu cancel {number} ends it"
    return SlurmGpuError(f"job {number} of {run.run_dir} {said}", hint=act)
