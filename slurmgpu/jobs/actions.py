"""What can be done with a job from the screen: each asks first, and is only for one's own jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slurmgpu.errors import SlurmGpuError
from slurmgpu.jobs.arrays import Line
from slurmgpu.jobs.cancel import cancel
from slurmgpu.jobs.live import Source, said_of
from slurmgpu.jobs.select import select
from slurmgpu.jobs.waits import about, words_of
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable
from slurmgpu.slurm import JobId, Verb

__all__ = ["ACTS", "Act", "Outcome", "perform", "question", "refusal"]


class Outcome(NamedTuple):
    """What became of it."""

    good: bool
    text: str


class Act(NamedTuple):
    """One thing that can be done."""

    key: str
    verb: str
    then: str
    """What follows, in the question."""
    bars: Callable[[JobStatus], str]
    """Why a job in this state cannot be asked for it; empty where it can."""


def _ended(job: JobStatus) -> str:
    if job.state is JobState.UNKNOWN:
        return "its state is not known"
    return f"it has ended: {job.state.value}" if job.state.is_final else ""


def _not_waiting(job: JobStatus) -> str:
    return "" if job.state.is_waiting else f"it does not wait: {job.state.value}"


def _not_held(job: JobStatus) -> str:
    if told := _not_waiting(job):
        return told
    return "" if any(about(word) == "held" for word in words_of(job.reason)) else "it is not held"


def _not_running(job: JobStatus) -> str:
    runs = job.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.CONFIGURING)
    return "" if runs else f"it does not run: {job.state.value}"


def _not_over(job: JobStatus) -> str:
    return "" if job.state.is_final else f"it has not ended: {job.state.value}"


ACTS = (
    Act("C", "cancel", "Its processes are ended.", _ended),
    Act("H", "hold", "It will not start before it is released.", _not_waiting),
    Act("U", "release", "It may start as soon as there is room.", _not_held),
    Act("Q", "requeue", "Its processes are ended, and it waits for its turn again.", _not_running),
    Act("R", "resume", "Its run is submitted again, and goes on from its checkpoints.", _not_over),
)


def refusal(act: Act, job: JobStatus, user: str) -> str:
    """Why this is not done, nor asked; empty where it may be."""
    name = _named(job)
    if job.user != user:
        whose = printable(job.user) if job.user else "somebody whose name is not known"
        return f"{name} belongs to {whose}: only jobs of yours can be changed here"
    barred = act.bars(job)
    return f"{name} cannot be asked to {act.verb}: {barred}" if barred else ""


def question(act: Act, line: Line) -> str:
    """The question before it is done, with the job's id and name."""
    tasks = f", {line.tasks}" if line.tasks else ""
    return f"{act.verb.capitalize()} {_named(line.job)}, {line.job.state.value}{tasks}?\n{act.then}"


def _named(job: JobStatus) -> str:
    return f"job {job.job_id} ({printable(job.name)})"


def perform(act: Act, job: JobStatus, source: Source) -> Outcome:
    """Do it, and say what became of it; nothing of somebody else's is touched, whoever asks."""
    told = refusal(act, job, source.user)
    if told:
        return Outcome(False, told)
    try:
        if act.verb == "cancel":
            results = cancel(source.acting, select([job.job_id]), user=source.user)
            good = all(one.outcome in ("cancelled", "ending", "finished") for one in results)
            return Outcome(good, "; ".join(printable(one.message) for one in results))
        if act.verb == "resume":
            run = source.run_of(job)
            if run is None:
                return Outcome(False, f"{_named(job)} has no run directory that is known here")
            good, said = source.resume(job.job_id if job.array_tasks else run.run_dir)
            return Outcome(good, said)
        verbs: dict[str, Verb] = {"hold": "hold", "release": "release", "requeue": "requeue"}
        said_by = source.acting.control(verbs[act.verb], [_target(job)])
    except SlurmGpuError as error:
        return Outcome(False, said_of(error))
    if said_by.lost:
        return Outcome(False, f"{_named(job)}: whether Slurm took it is not known; it said: {said_by.text}")
    if said_by.text:
        return Outcome(False, f"{_named(job)}: Slurm said: {said_by.text}")
    return Outcome(True, f"{_named(job)}: Slurm was asked to {act.verb} it")


def _target(job: JobStatus) -> str:
    """The id as scontrol takes it: without an array's limit, and of a heterogeneous job the whole."""
    job_id = JobId.parse(job.job_id)
    if "+" in job.job_id and job_id is not None:
        return str(job_id.number)
    return job.job_id.split("%")[0] + ("]" if "%" in job.job_id else "")
