"""The Slurm that commands ask which only look: what they are told is shared with the user's other processes."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.errors import InvalidInput
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.files.settings import Settings
    from slurmgpu.models.run import JobStatus
    from slurmgpu.slurm import Slurm

# An answer that another process has asked for is as good as one's own for so many seconds.
_YOUNG = 5.0


def own_slurm(ctx: click.Context) -> Slurm:
    """Return a Slurm that is asked anew; a caller's own, such as a test's, where the context has one."""
    from slurmgpu.slurm import Slurm

    return ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()


def shared_slurm(ctx: click.Context, settings: Settings | None = None) -> Slurm:
    """Return a Slurm whose answers are shared; a caller's own, such as a test's, where the context has one."""
    from slurmgpu.slurm import Slurm

    return ctx.obj if isinstance(ctx.obj, Slurm) else shared(settings)


def shared(settings: Settings | None = None) -> Slurm:
    """Return a Slurm whose answers may be some seconds old: as many as settings and site allow.

    Not for what decides something: who submits, cancels or resumes asks anew.
    """
    from slurmgpu.files.settings import load_settings
    from slurmgpu.slurm import Slurm, shelf_here

    settings = load_settings(Path.cwd(), os.environ).settings if settings is None else settings
    return Slurm(shelf=shelf_here(max(settings.poll_floor, settings.policy.poll_floor or 0)))


def named_or_newest(slurm: Slurm, jobs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the jobs that are named; where none is, the one that this user submitted last, and say which.

    Raises InvalidInput where there has been none since yesterday.
    """
    from slurmgpu.cli.terminal import note
    from slurmgpu.slurm import current_user

    if jobs:
        return jobs
    from slurmgpu.jobs.look import status

    known = [job for job in status(slurm, user=current_user()).jobs if job.raw_id is not None]
    if not known:
        raise InvalidInput(
            "no job is named, and you have had none since yesterday",
            hint="slurmgpu status --since 7d lists older ones",
        )
    newest = max(known, key=_submitted)
    word = newest.job_id.partition("_")[0]  # an array as a whole
    note(f"job {word}{f' ({printable(newest.name)})' if newest.name else ''}, your newest")
    return (word,)


def _submitted(job: JobStatus) -> tuple[datetime, int]:
    return job.submit or datetime.min.replace(tzinfo=timezone.utc), job.raw_id or 0


def ago(age: float) -> str:
    """`` (12 s ago)``: how old the oldest answer is, where that is worth a word."""
    return f" ({age:.0f} s ago)" if age > _YOUNG else ""
