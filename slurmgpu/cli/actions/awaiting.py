"""Waiting for a job at the terminal: what is said meanwhile, and when somebody interrupts."""

from __future__ import annotations

from collections.abc import Callable

import click

from slurmgpu.cli.interrupting import as_interrupts
from slurmgpu.cli.preparing import note
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.monitoring.following import GrowingLogs
from slurmgpu.monitoring.log_files import Log, logs_of
from slurmgpu.monitoring.select import Selection, current_user
from slurmgpu.monitoring.waiting import Ended, Onlooker, exit_code, wait_for
from slurmgpu.slurm import Slurm


def wait_at_terminal(
    slurm: Slurm,
    selection: Selection,
    name: str,
    logs: Callable[[JobStatus], list[Log]] | None,
    growing: GrowingLogs | None = None,
) -> Ended:
    """Wait for a job, say its states, and print its ``logs`` as they grow; ``growing`` are those shown already."""

    def say(text: str) -> None:
        note(f"job {name}: {text}")

    def write(piece: str) -> None:
        click.echo(piece, nl=False)

    try:
        with as_interrupts():
            return wait_for(slurm, selection, Onlooker(current_user(), say, write, logs, growing))
    except KeyboardInterrupt:
        note(f"job {name} goes on; `slurmgpu cancel {name}` ends it")
        raise


def wait_for_job(slurm: Slurm, run: Run, follow: bool) -> int:
    """Wait for a run's newest job, with ``follow`` printing its logs; its exit code."""
    selection = Selection(text=run.run_dir, run=run)
    logs = (lambda job: logs_of(run, job)) if follow else None
    ended = wait_at_terminal(slurm, selection, str(run.job_id), logs)
    if not ended.known:
        note(
            f"how job {run.job_id} ended is not known: neither queue nor accounting tells; look into {run.run_dir}"
        )
    elif exit_code(ended) and not follow:
        note(f"`slurmgpu logs {run.job_id}` shows its log")
    return exit_code(ended)
