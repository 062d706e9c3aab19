"""Whether a run's job has ended, for whoever wants to start it again: it has, it has not, or nobody can say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime

from slurmgpu.errors import OutcomeUnknown, SlurmGpuError, SlurmRefused, SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.monitoring.reasons import reason
from slurmgpu.monitoring.select import Selection, belongs, owner
from slurmgpu.monitoring.settling import IN_FLIGHT
from slurmgpu.monitoring.status import status
from slurmgpu.monitoring.waits import word_of
from slurmgpu.slurm import MORE_UNREAD, JobId, Slurm, cluster_name_here

__all__ = ["check_at_rest", "completed_tasks"]


def check_at_rest(slurm: Slurm, run: Run, now: datetime) -> None:
    """See in the queue that no job of the run waits or runs, whoever submitted it.

    Raises:
        SlurmGpuError: one does.
        OutcomeUnknown: the queue could not be asked, is another cluster's, or may yet receive the job.
    """
    _check_cluster(run, slurm.env)
    try:
        queued, notes = slurm.queue(owner(run))
    except (SlurmUnreachable, SlurmRefused) as error:
        raise OutcomeUnknown(
            f"cannot tell whether a job of {run.run_dir} is still queued or running: {error.message}",
            hint="nothing was submitted; try again when Slurm answers",
        ) from None
    live = [job for job in queued if not job.state.is_final and belongs(run, job)]
    if live:
        raise _lives(live[0], run)
    words = [MORE_UNREAD, *map(str, run.job_ids)]
    unread = [note for note in notes if any(word in note for word in words)]
    if unread:
        raise OutcomeUnknown(
            f"cannot tell whether a job of {run.run_dir} is still queued or running: {unread[0]}",
            hint="nothing was submitted; look with: squeue --me",
        )
    if run.job_id is None and now - run.submitted_at < IN_FLIGHT:
        raise OutcomeUnknown(
            f"the last submission of {run.run_dir} had no answer, and its job may still appear in the queue",
            hint=f"nothing was submitted; try again after {(run.submitted_at + IN_FLIGHT).astimezone():%H:%M}",
        )


def completed_tasks(slurm: Slurm, run: Run) -> set[str]:
    """The tasks that have completed in any of the run's jobs; '' for a job that is not an array.

    What neither the queue nor accounting remembers is not among them.
    """
    selections = [Selection(str(number), job_id=JobId(number)) for number in run.job_ids]
    jobs = status(slurm, user=owner(run), selections=selections).jobs if selections else []
    return {job.array_tasks or "" for job in jobs if job.state is JobState.COMPLETED and belongs(run, job)}


def _check_cluster(run: Run, env: Mapping[str, str] | None) -> None:
    several = (os.environ if env is None else env).get("SLURM_CLUSTERS")
    here = cluster_name_here(env)
    if several or here is None or run.cluster is None or run.cluster == here:
        return
    raise OutcomeUnknown(
        f"job {run.job_id} of {run.run_dir} is on cluster {run.cluster}, and this machine asks {here}: "
        "whether the job still waits or runs cannot be seen from here",
        hint=f"nothing was submitted; resume it on a login node of {run.cluster}",
    )


def _lives(job: JobStatus, run: Run) -> SlurmGpuError:
    number = job.job_id
    if job.state is JobState.COMPLETING:
        said = "is ending (COMPLETING), its last processes still run"
        act = "nothing was submitted; try again in a moment"
    elif job.state.is_waiting and word_of(job.reason).startswith("JobHeld"):
        said = f"is held: {reason(job)}"
        act = f"nothing was submitted; scontrol release {number} lets it start"
    elif job.state.is_waiting:
        said = f"still waits in the queue: {job.state.value}"
        act = f"it goes on by itself; to change what it asks for: slurmgpu cancel {number}, then resume"
    else:
        said = f"has not ended: {job.state.value}"
        act = f"slurmgpu logs --follow {number} shows it; slurmgpu cancel {number} ends it"
    return SlurmGpuError(f"job {number} of {run.run_dir} {said}", hint=act)
