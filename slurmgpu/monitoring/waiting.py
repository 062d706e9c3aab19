"""Waiting for a job, and following its log meanwhile, without a burden on the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.monitoring.select import Selection
from slurmgpu.monitoring.status import status
from slurmgpu.slurm.call import Slurm
from slurmgpu.slurm.ids import JobId, expand_pattern

__all__ = ["Ended", "GrowingLog", "exit_code", "log_path", "wait_for"]

FIRST_POLL, SLOWEST_POLL = 1.0, 30.0
LOG_POLL = 0.5
# Accounting lags behind the queue; only what stays unknown for this long is given up.
PATIENCE = 60.0


@dataclass(frozen=True)
class Ended:
    """How the tasks of a job ended; one for a plain job, one for each task of an array."""

    jobs: list[JobStatus]

    @property
    def known(self) -> bool:
        """Whether every task's end is known."""
        return bool(self.jobs) and all(job.state.is_final for job in self.jobs)


def exit_code(ended: Ended) -> int:
    """The job's own exit code: of several tasks the highest, 128 + N for a signal, 3 when it is not known.

    A state that is not COMPLETED is never 0, whatever code Slurm recorded (OUT_OF_MEMORY can have 0).
    """
    if not ended.known:
        return 3
    return max(_one_code(job) for job in ended.jobs)


def _one_code(job: JobStatus) -> int:
    if job.signal:
        return 128 + job.signal
    if job.state is JobState.COMPLETED:
        return job.exit_code or 0
    return job.exit_code or 1


def log_path(run: Run | None, job: JobStatus) -> Path | None:
    """The log file of a job, with Slurm's patterns expanded; None while it cannot be known."""
    job_id = JobId.parse(job.job_id)
    if job.stdout and "%" not in job.stdout:
        return Path(job.stdout)
    pattern = run.stdout if run is not None and run.stdout else job.stdout
    if pattern is None or job_id is None:
        return None
    expanded = expand_pattern(
        pattern, job_id=job_id, raw_id=job.raw_id, name=job.name, user=job.user, node_list=job.node_list
    )
    return None if expanded is None else Path(job.work_dir or ".") / expanded


def wait_for(
    slurm: Slurm,
    run: Run,
    *,
    user: str | None,
    write: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Wait until the job has ended; ``write`` receives its log as it grows, ``say`` each change of state.

    Slurm is asked after 1 s, then ever less often, every 30 s at most; a controller that does not answer is
    asked again at the slowest pace.
    """
    selection = Selection(text=run.run_dir, run=run)
    log = GrowingLog()
    interval, next_poll = FIRST_POLL, clock()
    lost_since: float | None = None
    jobs: list[JobStatus] = []
    while True:
        if clock() >= next_poll:
            try:
                jobs = status(slurm, user=user, selections=[selection]).jobs
            except SlurmUnreachable:
                interval = SLOWEST_POLL
            _report(jobs, log, say)
            log.path = log.path or next((path for path in (log_path(run, job) for job in jobs) if path), None)
            if Ended(jobs).known:
                break
            unknown = not jobs or any(job.state is JobState.UNKNOWN for job in jobs)
            lost_since = (lost_since if lost_since is not None else clock()) if unknown else None
            if lost_since is not None and clock() - lost_since > PATIENCE:
                break
            next_poll = clock() + interval
            interval = min(interval * 1.3, SLOWEST_POLL)
        pause(LOG_POLL)
        log.pass_on(write)
    log.pass_on(write)
    return Ended(jobs)


def _report(jobs: list[JobStatus], log: GrowingLog, say: Callable[[str], None] | None) -> None:
    text = ", ".join(sorted({_state(job) for job in jobs}))
    if say and text and text != log.said:
        say(text)
    log.said = text or log.said


def _state(job: JobStatus) -> str:
    reason = f" ({job.reason})" if job.reason and job.state.is_waiting else ""
    return f"{job.state.value}{reason}"


class GrowingLog:
    """A log file that grows, and may not be there yet."""

    def __init__(self, path: Path | None = None, position: int = 0) -> None:
        self.path = path
        self.said: str | None = None
        self._position = position

    def pass_on(self, write: Callable[[str], None] | None) -> None:
        """Write what has come since the last call."""
        if write is None:
            return
        for piece in self._new():
            write(piece.decode("utf-8", "replace"))

    def _new(self) -> Iterator[bytes]:
        if self.path is None or not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            while piece := file.read(65536):
                self._position += len(piece)
                yield piece
