"""Exit codes above 127, which most releases of sacct show without their 128: made whole where something else tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.regular import open_regular
from slurmgpu.models.run import EXIT_CODE_FILE, JobStatus, Run
from slurmgpu.monitoring.select import user_number
from slurmgpu.slurm import TAKEN_OFF

__all__ = ["with_whole_exit_code"]


def with_whole_exit_code(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> JobStatus:
    """A failed job with the exit code that it had; the queue's own is never cut.

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
    """What the job's script wrote at its end; a training's array has a folder for each task."""
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
