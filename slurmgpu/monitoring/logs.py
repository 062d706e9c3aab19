"""Where a job's log is, and its text: whole, its end, or as it grows."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.models.run import RUN_FILE, JobStatus, Run
from slurmgpu.monitoring.select import Selection, read_run
from slurmgpu.monitoring.status import status
from slurmgpu.monitoring.waiting import FIRST_POLL, LOG_POLL, SLOWEST_POLL, GrowingLog, log_path
from slurmgpu.slurm.call import Slurm

__all__ = ["Log", "end_of", "find_logs", "follow", "run_of"]


class Log(NamedTuple):
    """A job's log; the path is None where it cannot be told."""

    job_id: str
    path: Path | None
    why: str = ""
    """Why there is no path, or what the job waits for."""


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
        logs = [_log_of(selection.run or run_for(job), job) for job in jobs if job.source != "none"]
        if not logs and selection.run is not None:
            logs = _left_behind(selection.run)
        if not logs:
            raise SlurmGpuError(
                f"{selection.text}: Slurm knows no such job of yours",
                hint="slurmgpu status lists jobs; a job older than a day is found by its id, or by its run directory",
            )
        found += logs
    return found


def _log_of(run: Run | None, job: JobStatus) -> Log:
    path = log_path(run, job)
    if path is None:
        return Log(job.job_id, None, "neither Slurm nor a run directory says where its log is")
    waits = (
        f"it is {job.state.value}{f' ({job.reason})' if job.reason else ''}" if job.state.is_waiting else ""
    )
    return Log(job.job_id, path, waits)


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
    """The files in a run directory's own folder of logs."""
    logs = sorted((Path(run.run_dir) / "logs").glob("*"))
    return [Log(str(run.job_id or run.name), path) for path in logs if path.is_file()]


def end_of(path: Path, lines: int | None) -> tuple[str, int]:
    """The last lines of a file (None: all of it), and its size in bytes; nothing where it is not there yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "", 0
    text = data.decode("utf-8", "replace")
    if lines is not None:
        text = "".join(text.splitlines(keepends=True)[-lines:]) if lines else ""
    return text, len(data)


def follow(
    slurm: Slurm,
    selection: Selection,
    log: Log,
    position: int,
    *,
    user: str | None,
    write: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write what is added to a log from a position on, until its job has ended.

    Slurm is asked after 1 s, then ever less often, every 30 s at most.
    """
    growing = GrowingLog(log.path, position)
    interval, next_poll = FIRST_POLL, clock()
    while True:
        if clock() >= next_poll:
            try:
                jobs = status(slurm, user=user, selections=[selection]).jobs
                if all(job.state.is_final for job in jobs if job.job_id == log.job_id):
                    break
            except SlurmUnreachable:
                interval = SLOWEST_POLL
            next_poll = clock() + interval
            interval = min(interval * 1.3, SLOWEST_POLL)
        growing.pass_on(write)
        pause(LOG_POLL)
    growing.pass_on(write)
