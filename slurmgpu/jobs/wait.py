"""Waiting for a job without a burden on the controller."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.jobs.log_files import Log
from slurmgpu.jobs.logs import GrowingLogs
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import Selection
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import Slurm

__all__ = ["Ended", "exit_code", "wait_for"]

FIRST_POLL, SLOWEST_POLL = 1.0, 30.0
LOG_POLL = 0.5
# Accounting lags behind the queue; only what stays unknown for this long is given up, or, where accounting itself is
# silent, what the queue has not listed for so long.
PATIENCE, PATIENCE_WITH_SILENCE = 60.0, 600.0
# Of an array's tasks, the states alone where their reasons would be a paragraph.
_MOST_REASONS = 3

SILENT = f"Slurm does not answer; asking again every {SLOWEST_POLL:g} s (the job goes on by itself)"

_NAMED = re.compile(r"[Ii]nvalid (?:user|job|partition|field|option)|[Dd]enied|unrecognized option")


@dataclass(frozen=True)
class Ended:
    """The ends of a job's tasks; one for a plain job, one for each task of an array."""

    jobs: list[JobStatus]

    @property
    def known(self) -> bool:
        """True if every task's end is known."""
        return bool(self.jobs) and all(job.state.is_final for job in self.jobs)


def exit_code(ended: Ended) -> int:
    """Return the job's own exit code: of several tasks the highest, 128 + N for a signal, 3 when it is not known.

    A state that is not COMPLETED is never 0, whatever code Slurm recorded (OUT_OF_MEMORY can have 0).
    """
    if not ended.known:
        return 3
    return max(
        128 + job.signal if job.signal else job.exit_code or (0 if job.state is JobState.COMPLETED else 1)
        for job in ended.jobs
    )


def wait_for(
    slurm: Slurm,
    selections: Sequence[Selection],
    *,
    user: str | None,
    say: Callable[[str], None] | None = None,
    see: Callable[[list[JobStatus]], None] | None = None,
    write: Callable[[str], None] | None = None,
    logs_of: Callable[[JobStatus], list[Log]] | None = None,
    logs: GrowingLogs | None = None,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Wait until the selected jobs of a user (None: of anybody) have ended.

    ``say`` receives each change of state, ``see`` the jobs each time that Slurm has told of them, and ``write`` the logs that
    ``logs_of`` finds, as they grow; ``logs`` are those followed already.

    Slurm is asked after 1 s, then ever less often, every 30 s at most, or takes what another process of the user's was told
    meanwhile. A read that fails ends no wait: a controller that does not answer is asked again at the slowest pace, however
    long that takes.

    Raises SlurmRefused where Slurm says no to the question itself; once it has answered, only by a refusal that
    names what it refuses.
    """
    growing = logs or GrowingLogs()
    interval, next_poll = FIRST_POLL, clock()
    lost_since: float | None = None
    jobs: list[JobStatus] = []
    last = ""
    submitted: dict[str, datetime] = {}  # of the jobs that the queue has shown

    def say_once(text: str) -> None:
        nonlocal last
        if say and text and text != last:
            say(text)
        last = text or last

    def is_earlier(job: JobStatus) -> bool:
        """Accounting may know an earlier job of the same id than the one that the queue has shown."""
        shown = submitted.get(job.job_id)
        return bool(shown and job.submit and job.submit < shown - timedelta(seconds=60))

    def look_for_logs(found: list[JobStatus]) -> None:
        waits_together = any(job.array_tasks is not None and not job.array_tasks.isdigit() for job in found)
        growing.several = growing.several or len(found) > 1 or waits_together
        for job in found:
            for log in logs_of(job) if logs_of and job.source not in ("none", "run.json") else ():
                growing.add(log)
                if job.state.is_final:
                    growing.end(log)

    while True:
        if clock() >= next_poll:
            if slurm.shelf is not None:
                slurm.shelf.good_for = interval / 2  # one's own last answer is older
            report = None
            try:
                report = status(slurm, user=user, selections=selections, detail="sparing")
            except SlurmUnreachable:
                pass
            except SlurmRefused as error:
                if not jobs or _NAMED.search(error.message):
                    raise  # else a library is gone, a limit reached: it says nothing of the job
            if report is None or report.no_answer:
                interval = SLOWEST_POLL
            if report is None or (report.no_answer and report.unasked):
                say_once(SILENT)
                lost_since = None
            else:
                jobs = report.jobs
                if see is not None:
                    see(jobs)
                ended = Ended(jobs).known
                certain = not report.no_answer or (ended and not any(map(is_earlier, jobs)))
                if not report.no_answer:
                    submitted.update({job.job_id: job.submit for job in jobs if job.submit is not None})
                say_once(_states(jobs) if certain else SILENT)
                look_for_logs([job for job in jobs if not job.state.is_final or certain])
                if certain and ended:
                    break
                unknown = not jobs or any(job.state is JobState.UNKNOWN for job in jobs)
                unknown = unknown and (not report.no_answer or bool(report.unasked))
                lost_since = (lost_since if lost_since is not None else clock()) if unknown else None
                patience = PATIENCE_WITH_SILENCE if report.unasked else PATIENCE
                if lost_since is not None and clock() - lost_since > patience:
                    break
            # Those who wait look at the same moment, so that one of them asks for all.
            next_poll = clock() + interval - (min(report.age, interval) if report else 0.0)
            interval = min(interval * 1.3, SLOWEST_POLL)
        pause(LOG_POLL)
        growing.pass_on(write)
    growing.pass_on(write, last=True)
    return Ended(jobs)


def _states(jobs: list[JobStatus]) -> str:
    states = {job.state.value for job in jobs}
    texts = {f"{job.state.value}: {why}" if (why := reason(job)) else job.state.value for job in jobs}
    return "; ".join(sorted(states if len(texts) > _MOST_REASONS else texts))
