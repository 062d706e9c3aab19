"""A job in words, for every face alike: why it waits, how it ended, how far it is, its colour and its facts."""

from __future__ import annotations

import os
import pwd
import re
import signal
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

from slurmgpu.amounts import about, duration, size_text
from slurmgpu.jobs.arrays import Line, label
from slurmgpu.jobs.waits import WORDS, each_waits, waits, word_of
from slurmgpu.models.run import JobState, JobStatus, Progress
from slurmgpu.printable import printable
from slurmgpu.slurm import TAKEN_OFF

__all__ = [
    "LAUNCH_FAILED", "STOPPED", "JobView", "canceller", "colour_of", "is_refused", "kind_of", "outcome_of", "progress_text",
    "reason",
]  # fmt: skip

STOPPED = 75
"""EX_TEMPFAIL of sysexits.h, with which a training of slurmgpu's ends that has stopped and saved everything."""
LAUNCH_FAILED = 53
"""What Slurm writes as the signal where slurmstepd could not open the log or enter the work folder."""

_SILENT = 600.0  # seconds without a line of metrics that are worth a word


# States


class _StateWords(NamedTuple):
    colour: str
    outcome: str = ""
    """Behind the job's id: ``job 7 lost a node``."""
    sentence: str = ""
    """As a reason by itself."""


_STATES = {
    JobState.RUNNING: _StateWords("green"),
    JobState.CONFIGURING: _StateWords("cyan"),
    JobState.COMPLETING: _StateWords("cyan"),
    JobState.PENDING: _StateWords("yellow"),
    JobState.REQUEUED: _StateWords("yellow"),
    JobState.SUSPENDED: _StateWords("yellow"),
    JobState.COMPLETED: _StateWords("green", "completed"),
    JobState.CANCELLED: _StateWords("magenta", "was cancelled"),
    JobState.PREEMPTED: _StateWords("magenta", "was preempted", "made way for a job that comes first"),
    JobState.FAILED: _StateWords("red", "failed"),
    JobState.TIMEOUT: _StateWords("red", "ran into its time limit", "ran into its time limit"),
    JobState.OUT_OF_MEMORY: _StateWords("red", "ran out of memory", "used more memory than asked for"),
    JobState.NODE_FAIL: _StateWords("red", "lost a node", "a node failed"),
    JobState.BOOT_FAIL: _StateWords("red", "", "its nodes did not boot"),
    JobState.DEADLINE: _StateWords("red", "", "could not end before its deadline"),
    JobState.REVOKED: _StateWords("red", "", "another cluster of the federation started it"),
}
_NO_WORDS = _StateWords("bold red")


def colour_of(state: JobState) -> str:
    """Return the colour of a state on a terminal."""
    return _STATES.get(state, _NO_WORDS).colour


def kind_of(job: JobStatus) -> str:
    """Return the state as a style sheet knows it: ``runs``, ``waits``, ``good``, ``stopped`` or ``bad``."""
    if job.state in (JobState.RUNNING, JobState.COMPLETING, JobState.CONFIGURING):
        return "runs"
    if job.state.is_waiting:
        return "waits"
    if job.state is JobState.COMPLETED:
        return "good"
    return "stopped" if job.state in (JobState.CANCELLED, JobState.PREEMPTED) else "bad"


def outcome_of(state: JobState) -> str:
    """Return what became of an ended job, to stand behind its id: ``was preempted``."""
    return _STATES.get(state, _NO_WORDS).outcome or "has ended"


# Why a job waits or ended

# Slurm's words for ends that state and exit code do not tell.
_ENDED = {
    "NonZeroExitCode": "the command failed",
    "BadConstraints": "never started: Slurm refused it, most often because no node can run what it asks for",
    "JobLaunchFailure": "could not start: the log's or the work folder may be missing",
    "InactiveLimit": "was inactive for longer than the site allows",
    "SystemFailure": WORDS["SystemFailure"].meaning,
}
# Signals that end commands far more often than a command ends itself with their number as its exit code.
_KILLERS = {signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
# With 128 added, as likely as without: no failed command ends with 0, and ssh, srun and exit(-1) end with 255.
_OFTEN_CUT = {0, 127, *_KILLERS}


def reason(job: JobStatus) -> str | None:
    """Return why a job waits or how it ended, in words; None where there is nothing to say."""
    if job.state.is_final:
        return _how_it_ended(job)
    if job.reason is None:
        return None
    word = word_of(job.reason)
    if word == "BeginTime" and job.restarts:
        times = "once" if job.restarts == 1 else f"{job.restarts} times"
        return f"{printable(job.reason)}: put back into the queue ({times} so far), where Slurm lets it wait a moment"
    wait = waits(word, job)
    meaning = each_waits(job) or (wait.meaning if wait else None)
    if not job.state.is_waiting and (meaning is not None or word in _ENDED):
        return None  # Why it once waited, which Slurm does not clear, or how it is about to end.
    meaning = meaning.replace("{id}", job.job_id.partition("_[")[0]) if meaning else None
    if meaning and word not in job.reason:
        return meaning  # Slurm has written a sentence of its own, which says the same
    return f"{printable(job.reason)}: {meaning}" if meaning else printable(job.reason)


def _how_it_ended(job: JobStatus) -> str | None:
    """From what accounting keeps for good: the same words after the queue has forgotten the job."""
    if job.state is JobState.COMPLETED:
        code = job.derived_exit_code
        return f"the script ended well, but a step of it with exit code {code}" if code else None
    if job.state is JobState.CANCELLED:
        if job.state_text == JobState.REQUEUED.value:
            return "cancelled while it was put back into the queue"
        by = canceller(job)
        who = f" by {by}" if by else ""
        return f"cancelled{who}{'' if job.node_list or job.elapsed else ', before it started'}"
    if job.cause is not None:
        return job.cause
    if sentence := _STATES.get(job.state, _NO_WORDS).sentence:
        return sentence
    if is_refused(job):
        return _ENDED["BadConstraints"]
    code = job.exit_code
    if job.signal == LAUNCH_FAILED and not code:
        return _ENDED["JobLaunchFailure"]
    if job.signal:
        return f"ended by {_signal_name(job.signal)}"
    if code == STOPPED:
        return f"stopped, and can go on: slurmgpu resume {job.job_id}"
    if code is not None and code > TAKEN_OFF and code - TAKEN_OFF in set(signal.Signals):
        return f"the command was ended by {_signal_name(code - TAKEN_OFF)} (exit code {code})"
    if code is not None and job.exit_code_cut and code in _OFTEN_CUT:
        cut = f"{code + TAKEN_OFF}: {_signal_name(code)}" if code in _KILLERS else str(code + TAKEN_OFF)
        return f"the command failed (exit code {code}, or {cut}; older releases of sacct show both as {code})"
    if code:
        failed = {126: "a command could not be started", 127: "a command was not found"}
        return f"{failed.get(code, 'the command failed')} (exit code {code})"
    return _ENDED.get(word_of(job.reason))


def is_refused(job: JobStatus) -> bool:
    """Return True if Slurm refused the job, most often at submission: accounting has it as failed, without a node or a second."""
    at_once = job.end is not None and job.start in (None, job.end)  # 26.05 names no start
    # The queue has 1 as its wait status, which would be a signal. The line of an array names no nodes, wherever its tasks ran.
    lone = job.array_job_id is None
    return at_once and lone and job.state is JobState.FAILED and job.node_list is None


def canceller(job: JobStatus) -> str:
    """Return who cancelled a job; empty where Slurm does not say."""
    match = re.search(r" by (\d+)", job.state_text)
    if match is None:
        return ""
    number = int(match[1])
    if number == os.getuid():
        return "you"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# How far it is


def progress_text(progress: Progress, *, running: bool) -> str:
    """Return ``1200/9000 13% loss 1.23 eta 2h``, and for how long nothing has been heard of a training that runs."""
    total = progress.total_steps
    parts = [f"{progress.step}/{total}" if total else f"step {progress.step}"]
    if progress.share is not None:
        parts.append(f"{int(progress.share * 100)}%")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if not running:
        return " ".join(parts)
    if progress.ended is None and progress.age_seconds > _SILENT:
        parts.append(f"silent for {about(progress.age_seconds)}")
    elif progress.eta_seconds is not None:
        parts.append(f"eta {about(progress.eta_seconds)}")
    return " ".join(parts)


# Facts


class JobView:
    """One job, or the tasks of an array taken together, at one moment; a fact that is not known is None."""

    __slots__ = ("job", "now", "tasks")

    def __init__(self, line: Line, now: datetime) -> None:
        self.job = line.job
        self.tasks = line.tasks
        self.now = now

    @property
    def label(self) -> str:
        """The id, as short as a table needs it."""
        return label(self.job.job_id)

    @property
    def gpus(self) -> str | None:
        """``4 a100``; of an array's tasks, of each."""
        job = self.job
        if job.gpus is None:
            return None
        types = ",".join(sorted(job.gpu_types))
        each = " each" if self.tasks and job.gpus else ""
        return (f"{job.gpus} {types}" if types else str(job.gpus)) + each

    @property
    def nodes(self) -> str | None:
        """How many nodes, and which."""
        job = self.job
        if job.nodes is None:
            return None
        return f"{job.nodes} {job.node_list}" if job.node_list else str(job.nodes)

    @property
    def limit(self) -> str | None:
        """The time limit."""
        return "UNLIMITED" if self.job.limit == "UNLIMITED" else duration(self.job.limit)

    @property
    def moment(self) -> datetime | None:
        """When it ended, began or will begin. Of a job that will never start, Slurm may have an estimate all the same."""
        job = self.job
        if not job.state.is_waiting:
            return job.end if job.state.is_final else job.start
        wait = waits(word_of(job.reason), job) if job.reason else None
        return None if wait is not None and wait.never else job.expected_start

    @property
    def when(self) -> str | None:
        """``starts 14:05?``, ``since 14:05`` or ``ended 14:05``."""
        moment = self.moment
        if moment is None:
            return None
        clock = self.clock(moment)
        if self.job.state.is_waiting:
            return f"starts {clock}?"
        return f"{'ended' if self.job.state.is_final else 'since'} {clock}"

    @property
    def submitted(self) -> str | None:
        """When it was submitted."""
        return self.clock(self.job.submit) if self.job.submit else None

    def clock(self, moment: datetime) -> str:
        """Return the time in this machine's zone, with the date where it is not today's."""
        local = moment.astimezone()
        minute = f"{local.hour:02}:{local.minute:02}"
        if local.date() == _today(self.now):
            return minute
        return f"{local.year:04}-{local.month:02}-{local.day:02} {minute}"

    @property
    def exit_code(self) -> str | None:
        """The exit code, as Slurm's `code:signal` where a signal is in it; 0 stands for success alone."""
        job = self.job
        if not job.state.is_final or job.exit_code is None:
            return None
        if job.signal:
            return f"{job.exit_code}:{job.signal}"
        return str(job.exit_code) if job.exit_code or job.state is JobState.COMPLETED else None

    def used(self, field: str) -> float | None:
        """Return an amount that it uses or used: ``max_rss``, ``average_cpus`` or ``gpu_memory``."""
        amount: float | None = getattr(self.job.live or self.job.used, field, None)
        return amount

    @property
    def _unmeasured(self) -> str | None:
        """What an ended job used is known or not; a running one was not asked, or has yet to be seen."""
        return "n/a" if self.job.state.is_final else None

    @property
    def max_rss(self) -> str | None:
        """The most memory of a task."""
        amount = self.used("max_rss")
        return self._unmeasured if amount is None else size_text(amount)

    @property
    def cpus_used(self) -> str | None:
        """``3.2 of 8``."""
        amount = self.used("average_cpus")
        of = f" of {self.job.cpus}" if self.job.cpus else ""
        return self._unmeasured if amount is None else f"{amount:.1f}{of}"

    @property
    def gpu_use(self) -> str | None:
        """The mean use of its GPUs, by its samples."""
        share = self.job.sampled.gpu_utilisation if self.job.sampled else None
        return None if share is None else f"{share:.0%}"

    @property
    def gpu_memory(self) -> str | None:
        """The most of any task, by Slurm, else of any GPU, by the job's samples; of how much, where that is known."""
        sampled = self.job.sampled
        if sampled is None or sampled.gpu_memory_peak is None or (self.job.used and self.job.used.gpu_memory):
            amount = self.used("gpu_memory")
            return self._unmeasured if amount is None else size_text(amount)
        totals = {gpu.memory_total for gpu in sampled.gpus}
        total = next(iter(totals)) if len(totals) == 1 else None
        return size_text(sampled.gpu_memory_peak) + (f" of {total / 2**30:.0f}" if total else "")

    @property
    def progress(self) -> str | None:
        """How far a training is."""
        job = self.job
        return None if job.progress is None else progress_text(job.progress, running=not job.state.is_final)

    @property
    def reason(self) -> str:
        """Of an array how its tasks are; why it waits, or how it ended."""
        return "; ".join(filter(None, (self.tasks, reason(self.job))))

    @property
    def doing(self) -> str:
        """How far a running job is, as far as it tells; of others why they wait, or how they ended."""
        running = self.progress if not self.job.state.is_final else None
        return printable("; ".join(filter(None, (self.tasks, running, reason(self.job)))))


@lru_cache(maxsize=8)
def _today(now: datetime) -> date:
    return now.astimezone().date()
