"""What jobs use and used, as Slurm measures it: ended ones by accounting, running ones by asking their nodes."""

from __future__ import annotations

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus, JobUse, LiveUse
from slurmgpu.monitoring.arrays import known
from slurmgpu.slurm import Accounting, Slurm, Step, StepUse, highest_exit_code

__all__ = ["with_live_use", "with_use_of_ended"]


def with_use_of_ended(accounting: Accounting, jobs: list[JobStatus]) -> list[JobStatus]:
    """What ended jobs used; where accounting has not heard of a job's steps, nothing is known."""
    derived = {job.job_id: job.derived_exit_code for job in accounting.jobs}
    steps: dict[str, list[Step]] = {}
    for step in accounting.steps:
        steps.setdefault(step.job_id, []).append(step)
    return [
        job.model_copy(
            update={
                "used": _used(job, steps[job.job_id]),
                "derived_exit_code": highest_exit_code(derived.get(job.job_id), steps[job.job_id]),
            }
        )
        if job.state.is_final and job.job_id in steps
        else job
        for job in jobs
    ]


def _used(job: JobStatus, steps: list[Step]) -> JobUse:
    times = known(step.cpu_seconds for step in steps)
    return JobUse(
        max_rss=max(known(step.max_rss for step in steps), default=None),
        cpu_seconds=sum(times) if times else None,
        average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
        gpu_memory=max(known(step.gpu_memory for step in steps), default=None),
    )


def with_live_use(slurm: Slurm, jobs: list[JobStatus]) -> tuple[list[JobStatus], list[str]]:
    """What running jobs use now, by asking their nodes, and notes on those that did not answer."""
    running = [job.raw_id for job in jobs if job.state is JobState.RUNNING and job.raw_id is not None]
    try:
        steps, notes = slurm.live_use(running)
    except SlurmUnreachable as error:
        return jobs, [error.message]
    return [_with_use(job, [s for s in steps if s.job_id == job.raw_id]) for job in jobs], notes


def _with_use(job: JobStatus, steps: list[StepUse]) -> JobStatus:
    if not steps:
        return job
    times = [s.tasks * s.average_cpu for s in steps if s.tasks is not None and s.average_cpu is not None]
    use = LiveUse(
        max_rss=max(known(s.max_rss for s in steps), default=None),
        cpu_seconds=sum(times) if times else None,
        average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
    )
    return job.model_copy(update={"live": use})
