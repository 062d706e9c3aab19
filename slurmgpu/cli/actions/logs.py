"""What ``slurmgpu logs`` does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import click

from slurmgpu.cli.actions.awaiting import wait_at_terminal
from slurmgpu.cli.preparing import note
from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.files.settings import runs_by_settings
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.monitoring.following import GrowingLogs, header
from slurmgpu.monitoring.log_files import Log, Stream, absence, end_of, logs_of
from slurmgpu.monitoring.logs import find_logs
from slurmgpu.monitoring.runs import run_of_job
from slurmgpu.monitoring.select import Selection, current_user, select
from slurmgpu.monitoring.waiting import SLOWEST_POLL
from slurmgpu.slurm import Slurm

_EMPTY_NAMED = 3


def act(
    ctx: click.Context,
    jobs: tuple[str, ...],
    lines: int | None,
    follow: bool,
    stream: Stream | None,
    paths: bool,
) -> None:
    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()
    if follow and len(jobs) > 1:
        raise InvalidInput(
            f"--follow shows the logs of one job, and {len(jobs)} are named: {' '.join(jobs)}",
            hint=f"name one of them: slurmgpu logs --follow {jobs[0]}",
        )
    wanted = stream or "both"
    selections = select(jobs)
    runs_of = runs_by_settings(Path.cwd(), os.environ)

    def run_for(job: JobStatus) -> Run | None:
        return run_of_job(job, runs_of)

    found = _find(slurm, selections, run_for, patient=follow)
    logs = [log for log in found if log.shows(wanted)]
    if paths:
        ctx.exit(_show_paths(logs))
    growing = GrowingLogs(several=len(logs) > 1)
    _show_all(logs, lines, growing, follow)
    if follow:

        def wanted_of(job: JobStatus) -> list[Log]:
            return [log for log in logs_of(selections[0].run or run_for(job), job) if log.shows(wanted)]

        wait_at_terminal(slurm, selections[0], _name_of(jobs[0]), wanted_of, growing)
    ctx.exit(0 if growing.shown or any(log.path and log.path.exists() for log in logs) else 1)


def _find(
    slurm: Slurm, selections: list[Selection], run_for: Callable[[JobStatus], Run | None], *, patient: bool
) -> list[Log]:
    """The logs of the jobs; who is ``patient`` asks a Slurm that does not answer again."""
    while True:
        try:
            return find_logs(slurm, selections, current_user(), run_for, earlier=not patient)
        except SlurmUnreachable as error:
            if not patient:
                raise
            note(f"{error.message}; asking again in {SLOWEST_POLL:g} s")
            time.sleep(SLOWEST_POLL)


def _show_all(logs: list[Log], lines: int | None, growing: GrowingLogs, follow: bool) -> None:
    """Print the logs; say of which there is nothing to show, unless they are to be followed."""
    nothing = [(log, why) for log in logs if (why := _show(log, lines, growing)) and (log.why or not follow)]
    empty = sum(log.path is not None and log.path.exists() for log, _ in nothing)
    for log, why in nothing:
        if empty <= _EMPTY_NAMED or log.path is None or not log.path.exists():
            note(f"{log.title}: {why}")
    if empty > _EMPTY_NAMED:
        note(f"{empty} logs are empty; --path names them")


def _name_of(word: str) -> str:
    """A job as it was named; of a run directory its own name, for the path is long."""
    return Path(word).absolute().name if "/" in word or word in {".", ".."} else word


def _show_paths(logs: list[Log]) -> int:
    """Print where the logs are; 1 when that is not known of one."""
    for log in logs:
        if log.path is None:
            note(f"{log.title}: {log.why}")
        else:
            click.echo(log.path)
    return 1 if any(log.path is None for log in logs) else 0


def _show(log: Log, lines: int | None, growing: GrowingLogs) -> str | None:
    """Print what is in a log so far, under a header where there are several; why there is nothing to print."""
    if log.path is None:
        return log.why
    text, size = end_of(log.path, lines)
    if text and growing.several:
        click.echo(click.style(header(log), bold=True))
    click.echo(text, nl=False)
    if text and growing.several and not text.endswith("\n"):
        click.echo()
    growing.add(log, size, shown=bool(text))
    if size:
        return None
    return f"{log.path} is empty" if log.path.exists() else f"there is no {log.path}: {absence(log)}"
