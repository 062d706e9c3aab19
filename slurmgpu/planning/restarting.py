"""Whether a job may start again: why, by whom, and what cannot be."""

from __future__ import annotations

from slurmgpu.errors import PlanError
from slurmgpu.models.job import Job, Restart

__all__ = ["refuse_timeout", "restart_of"]

# Slurm has one switch for these (sbatch(1), --requeue), and without it scontrol requeue is refused, too.
_BY_SLURM = {"preemption": "preemption", "node_failure": "node failure"}


def restart_of(job: Job, own_loop: str | None = None) -> tuple[Restart, str]:
    """When the job starts again, and why; PlanError when a new start could not go on from the last one.

    ``own_loop``: where the script imports slurmgpu.training, if it does.
    """
    train = job.train
    if job.restart is not None:
        restart, why = job.restart, "as asked (restart)"
    elif train is not None and train.resume:
        restart = Restart.model_construct(on=("timeout", "preemption", "node_failure"))
        why = "the training entrypoint resumes from its last checkpoint"
    else:
        restart = Restart.model_construct()
        why = (
            f"{own_loop} imports slurmgpu.training; if it resumes, restart: {{on: [timeout, preemption, node_failure]}} "
            "starts it again"
            if own_loop
            else "nothing says that the command can resume, so it must not run twice; restart: {on: [preemption]} allows it"
        )
    if "timeout" in restart.on:
        if train is not None and not train.resume:
            raise PlanError(
                "restart.on: timeout and train.resume: false exclude each other: every start would begin anew",
                hint="leave one of the two out",
            )
        why += (
            "; when the time is up the script requeues it"
            if train is not None
            else "; the script requeues it when slurmgpu.training.Run has stopped it, or it ends with code 75"
        )
    others = [name for key, name in _BY_SLURM.items() if key not in restart.on]
    if restart.on and others:
        why += f"; Slurm's --requeue covers {' and '.join(others)} too"
    return restart, why


def refuse_timeout(job: Job, field: str) -> None:
    """PlanError when a job asks for a new start at the time limit whose script cannot see to it."""
    if job.restart is not None and "timeout" in job.restart.on:
        raise PlanError(
            f"restart.on: timeout and {field}: exclude each other: what ends a job's own steps in time is the job's",
            hint="leave timeout out; let the steps save and end before the limit (--signal), and call "
            'scontrol requeue Incomplete "$SLURM_JOB_ID" yourself when they have',
        )
