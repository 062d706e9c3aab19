"""The logs of the jobs that words on the command line mean."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.models.run import RUN_FILE, JobStatus, Run
from slurmgpu.monitoring.log_files import Log, logs_of, tasks_of
from slurmgpu.monitoring.select import Selection, read_run
from slurmgpu.monitoring.status import status
from slurmgpu.slurm.call import Slurm

__all__ = ["find_logs", "run_of"]


def find_logs(
    slurm: Slurm,
    selections: Sequence[Selection],
    user: str | None,
    run_for: Callable[[JobStatus], Run | None],
) -> list[Log]:
    """The logs of the jobs that some words mean; a run directory's own where Slurm does not answer or forgot it.

    ``run_for`` finds the run of a job.

    Raises SlurmUnreachable when a word is no run directory and nothing answers; SlurmGpuError for an unknown job.
    """
    found: list[Log] = []
    for selection in selections:
        try:
            jobs = status(slurm, user=user, selections=[selection]).jobs
        except SlurmUnreachable:
            if selection.run is None:
                raise
            jobs = []
        known = (job for job in jobs if job.source != "none")
        logs = [log for job in known for log in logs_of(selection.run or run_for(job), job)]
        if selection.run is not None and not any(log.path and log.path.exists() for log in logs):
            logs = _left_behind(selection.run) or logs
        if not logs:
            raise SlurmGpuError(
                f"{selection.text}: Slurm knows no such job of yours",
                hint="slurmgpu status lists jobs; a job older than a day is found by its id, or by its run directory",
            )
        found += logs
    return found


def run_of(job: JobStatus) -> Run | None:
    """The run that a job belongs to, by the path of its script."""
    words = [job.script or "", *_words(job.submit_line or "")]
    for word in words:
        folder = Path(word).parent
        if word.startswith("/") and (folder / RUN_FILE).is_file():
            return read_run(folder)
    return None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _left_behind(run: Run) -> list[Log]:
    """The logs in a run directory, whatever Slurm knows: those in its folder of logs, and those of submitit's tasks."""
    paths = sorted((Path(run.run_dir) / "logs").glob("*"))
    logs = [Log(str(run.job_id or run.name), path) for path in paths if path.is_file()]
    return logs + (tasks_of(run, run.job_id, str(run.job_id)) if run.job_id is not None else [])
