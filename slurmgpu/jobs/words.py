"""Why a job waits, and why it ended, each in a plain sentence. The words for which jobs wait are in ``waits``."""

from __future__ import annotations

import os
import pwd
import re
import signal

from slurmgpu.jobs.waits import WORDS, each_waits, waits, word_of
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable
from slurmgpu.slurm import TAKEN_OFF

__all__ = ["LAUNCH_FAILED", "STOPPED", "canceller", "is_refused", "reason"]


STOPPED = 75
"""EX_TEMPFAIL of sysexits.h, with which a training of slurmgpu's ends that has stopped and saved everything."""


def reason(job: JobStatus) -> str | None:
    """Why a job waits or how it ended, in words; None where there is nothing to say."""
    if job.state.is_final:
        return _end(job)
    if job.reason is None:
        return None
    word = word_of(job.reason)
    if word == "BeginTime" and job.restarts:
        times = "once" if job.restarts == 1 else f"{job.restarts} times"
        return f"{printable(job.reason)}: put back into the queue ({times} so far), where Slurm lets it wait a moment"
    known = waits(word, job)
    meaning = each_waits(job) or (known.meaning if known else None)
    if not job.state.is_waiting and (meaning is not None or word in _ENDED):
        return None  # Why it once waited, which Slurm does not clear, or how it is about to end.
    meaning = meaning.replace("{id}", job.job_id.partition("_[")[0]) if meaning else None
    if meaning and word not in job.reason:
        return meaning  # Slurm has written a sentence of its own, which says the same
    return f"{printable(job.reason)}: {meaning}" if meaning else printable(job.reason)


_ENDS = {
    JobState.TIMEOUT: "ran into its time limit",
    JobState.OUT_OF_MEMORY: "used more memory than asked for",
    JobState.PREEMPTED: "made way for a job that comes first",
    JobState.NODE_FAIL: "a node failed",
    JobState.BOOT_FAIL: "its nodes did not boot",
    JobState.DEADLINE: "could not end before its deadline",
    JobState.REVOKED: "another cluster of the federation started it",
}
# Slurm's words for ends that state and exit code do not tell.
_ENDED = {
    "NonZeroExitCode": "the command failed",
    "BadConstraints": "never started: Slurm refused it, most often because no node can run what it asks for",
    "JobLaunchFailure": "could not start: the log's or the work folder may be missing",
    "InactiveLimit": "was inactive for longer than the site allows",
    "SystemFailure": WORDS["SystemFailure"].meaning,
}
LAUNCH_FAILED = 53
"""What Slurm writes as the signal where slurmstepd could not open the log or enter the work folder."""
# Signals that end commands far more often than a command ends itself with their number as its exit code.
_KILLERS = {signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
# With 128 added, as likely as without: no failed command ends with 0, and ssh, srun and exit(-1) end with 255.
_OFTEN_CUT = {0, 127, *_KILLERS}


def _end(job: JobStatus) -> str | None:
    """How a job ended, from what accounting keeps for good: the same words after the queue has forgotten it."""
    if job.state is JobState.COMPLETED:
        code = job.derived_exit_code
        return f"the script ended well, but a step of it with exit code {code}" if code else None
    word = word_of(job.reason)
    if job.state is JobState.CANCELLED:
        return _cancelled(job)
    if job.cause is not None:
        return job.cause
    if job.state in _ENDS:
        return _ENDS[job.state]
    if is_refused(job):
        return _ENDED["BadConstraints"]
    if job.signal == LAUNCH_FAILED and not job.exit_code:
        return _ENDED["JobLaunchFailure"]
    return _by_code(job) or _ENDED.get(word)


def is_refused(job: JobStatus) -> bool:
    """Whether Slurm refused the job, most often at submission: accounting keeps it as failed, without a node or a second."""
    at_once = job.end is not None and job.start in (None, job.end)  # 26.05 names no start
    # The queue has 1 as its wait status, which would be a signal. The line of an array names no nodes, wherever its tasks ran.
    lone = job.array_job_id is None
    return at_once and lone and job.state is JobState.FAILED and job.node_list is None


def canceller(job: JobStatus) -> str:
    """Who cancelled a job; empty where Slurm does not say."""
    match = re.search(r" by (\d+)", job.state_text)
    return _user(int(match[1])) if match else ""


def _cancelled(job: JobStatus) -> str:
    if job.state_text == JobState.REQUEUED.value:
        return "cancelled while it was put back into the queue"
    by = canceller(job)
    who = f" by {by}" if by else ""
    return f"cancelled{who}{'' if job.node_list or job.elapsed else ', before it started'}"


def _user(number: int) -> str:
    if number == os.getuid():
        return "you"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _by_code(job: JobStatus) -> str | None:
    code = job.exit_code
    if job.signal:
        return f"ended by {_signal(job.signal)}"
    if code is None:
        return None
    if code == STOPPED:
        return f"stopped, and can go on: slurmgpu resume {job.job_id}"
    if code > TAKEN_OFF and code - TAKEN_OFF in set(signal.Signals):
        return f"the command was ended by {_signal(code - TAKEN_OFF)} (exit code {code})"
    if job.exit_code_cut and code in _OFTEN_CUT:
        cut = f"{code + TAKEN_OFF}: {_signal(code)}" if code in _KILLERS else str(code + TAKEN_OFF)
        return f"the command failed (exit code {code}, or {cut}; older releases of sacct show both as {code})"
    known = {126: "a command could not be started", 127: "a command was not found"}
    return f"{known.get(code, 'the command failed')} (exit code {code})" if code else None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
