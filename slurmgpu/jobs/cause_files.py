"""What a job's script leaves in its run directory at its end: the first cause, an orderly stop, the whole exit code."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from slurmgpu.diagnosis.facts import BY_SLURM, CAUSE_FILE, Cause
from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.select import user_number
from slurmgpu.models.run import EXIT_CODE_FILE, JobState, JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.slurm import TAKEN_OFF
from slurmgpu.training.formats.run_files import STOP_FILE, read_stop

__all__ = [
    "cause_file",
    "in_one_line",
    "orderly_stop",
    "read_cause",
    "with_cause",
    "with_whole_exit_code",
    "written_cause",
]


_MOST_BYTES = 1 << 20


def read_cause(run_dir: Path | str, job_id: int | str, owner: int | None = None) -> Cause | None:
    """Return what a job's script wrote into its run directory at its end; None where there is no such file of its owner's.

    ``job_id`` is the plain number; an array's task has a folder of its own. ``owner``: whose file counts (default: this
    user's), since a folder may be one that others write into.
    """
    name = f"{CAUSE_FILE}{job_id}.json"
    paths = [Path(run_dir, name), *islice(Path(run_dir).glob(f"[0-9]*/{name}"), 1)]
    found = (cause_file(path, os.getuid() if owner is None else owner) for path in paths)
    return next((cause for cause in found if cause is not None), None)


def cause_file(path: Path, owner: int) -> Cause | None:
    """Return what such a file says; None where it is none, or is not this owner's."""
    try:
        return Cause.from_json(_read_file_of(owner, path))
    except (OSError, ValueError, RecursionError):
        return None


def _read_file_of(owner: int, path: Path) -> bytes:
    """Return a file's bytes; OSError where it is no plain, small file of this user's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        there = os.fstat(descriptor)
        if there.st_uid != owner or not stat.S_ISREG(there.st_mode) or there.st_size > _MOST_BYTES:
            raise OSError(f"{path} is not a file of user {owner}'s, or is too large")
        return file.read(_MOST_BYTES)


def orderly_stop(job: JobStatus, run: Run | None) -> str | None:
    """Return how a training of slurmgpu's stopped in good order at the end of this start, and how it continues.

    By state/stop.json, which it leaves once all is saved: torchrun ends with 1 whatever the exit code of its processes.
    """
    owner = user_number(job.user)
    if run is None or job.raw_id is None or owner is None:
        return None
    folder = Path(run.run_dir)
    task = job.job_id.partition("_")[2]
    try:
        stop = read_stop(_read_file_of(owner, (folder / task if task.isdigit() else folder) / STOP_FILE))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    of_this_start = stop.job_id == str(job.raw_id) and stop.restart >= (job.restarts or 0)
    if not of_this_start or not stop.is_orderly:
        return None
    if job.state is JobState.PREEMPTED:
        by = "for a job that comes first"
    elif stop.reason == "time" or job.state is JobState.TIMEOUT:
        by = "by its time limit"
    else:
        by = f"by {stop.reason}"
    if stop.gained <= 0:
        return f"stopped {by} before it gained a step (it is at step {stop.step}): give it more time"
    return f"stopped {by} at step {stop.step}; slurmgpu resume {job.job_id} continues it"


def written_cause(job: JobStatus, run: Run | None) -> Cause | None:
    """Return what a job's script wrote down in its run; None of an earlier start's, which this one has not written anew."""
    owner = user_number(job.user)
    if run is None or job.raw_id is None or owner is None:
        return None
    found = read_cause(run.run_dir, job.raw_id, owner)
    return None if found is not None and found.restart < (job.restarts or 0) else found


def in_one_line(cause: Cause) -> str:
    """Return where it failed first and how, for a cell of a table; nothing of the user's text may steer a terminal."""
    where = f"{cause.where}: " if cause.where else ""
    return printable(f"{where}{cause.what}")


def with_cause(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> JobStatus:
    """Return a failed job with how it stopped in good order, else with the first cause that its script is certain of."""
    if not job.state.is_final or job.state is JobState.COMPLETED or job.raw_id is None:
        return job
    try:
        run = run_for(job)
    except InvalidInput:  # a record or settings that cannot be read
        return job
    stop = orderly_stop(job, run)
    if stop is not None:
        return job.model_copy(update={"cause": stop})
    cause = written_cause(job, run)
    if cause is None or not cause.known or not cause.certain or cause.kind in BY_SLURM:
        return job
    return job.model_copy(update={"cause": in_one_line(cause)})


def with_whole_exit_code(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> JobStatus:
    """Return a failed job with the exit code that it had; the queue's own is never cut.

    What tells: the exit code of the job's steps, which sacct shows whole (sacct(1), DerivedExitCode), or the one that
    the script wrote into its run directory. Neither counts unless it is the one shown, and 128.
    """
    if not job.exit_code_cut or job.exit_code is None:
        return job
    whole = job.exit_code + TAKEN_OFF
    known = whole if job.derived_exit_code == whole else _written(job, run_for)
    if known in (job.exit_code, whole):
        return job.model_copy(update={"exit_code": known, "exit_code_cut": False})
    return job


def _written(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> int | None:
    """Return what the job's script wrote at its end; a training's array has a folder for each task."""
    try:
        run = run_for(job)
    except InvalidInput:  # a record or settings that cannot be read
        return None
    if run is None:
        return None
    name = f"{EXIT_CODE_FILE}{job.raw_id}"
    for folder in ("", job.array_tasks or ""):
        try:
            with open_regular(Path(run.run_dir, folder, name)) as file:
                # The run directory may be one that a group writes into.
                if os.fstat(file.fileno()).st_uid == user_number(job.user):
                    return int(file.read(20))
        except (OSError, ValueError):
            continue
    return None
