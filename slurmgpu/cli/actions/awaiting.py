"""Waiting for a job at the terminal: what is said meanwhile, and when somebody interrupts."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from slurmgpu.cli.actions.asking import shared
from slurmgpu.cli.interrupting import as_interrupts
from slurmgpu.cli.preparing import note
from slurmgpu.jobs.log_files import Log, logs_of
from slurmgpu.jobs.select import Selection, current_user
from slurmgpu.jobs.wait import Ended, GrowingLogs, Onlooker, exit_code, wait_for
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.printable import Harmless
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

    try:
        with as_interrupts(), written() as write:
            return wait_for(slurm, selection, Onlooker(current_user(), say, write, logs, growing))
    except KeyboardInterrupt:
        note(f"job {name} goes on; `slurmgpu cancel {name}` ends it")
        raise


@contextmanager
def written(*, redraws: bool = True) -> Iterator[Callable[[str], None]]:
    """What prints the text of logs: to a file as it is, to a terminal, or a pipe to one, what steers nothing there."""
    harmless = None if _goes_to_a_file() else Harmless(redraws=redraws)

    def write(piece: str) -> None:
        click.echo(harmless.text(piece) if harmless is not None else piece, nl=False)

    try:
        yield write
    finally:
        if harmless is not None:
            click.echo(harmless.end(), nl=False)


def _goes_to_a_file() -> bool:
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # no file at all: a program that collects it
        return True


def wait_for_job(run: Run, follow: bool, slurm: Slurm | None = None) -> int:
    """Wait for a run's newest job, with ``follow`` printing its logs; its exit code."""
    if slurm is None:
        slurm = shared()
        if slurm.shelf is not None:
            slurm.shelf.only_from_now()  # the job has come this moment
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
