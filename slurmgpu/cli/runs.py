"""``slurmgpu runs``: what the run directories say of their jobs."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import click

from slurmgpu.cli.options import own_slurm
from slurmgpu.errors import InvalidInput, OutcomeUnknown
from slurmgpu.printable import printable


@click.group("runs", no_args_is_help=True)
def command() -> None:
    """Run directories: what became of submissions that had no answer."""


@command.command("settle")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.pass_context
def settle_runs(ctx: click.Context, runs: tuple[Path, ...]) -> None:
    """Ask Slurm which jobs my submissions became, where run.json does not say so, and write it there.

    RUN is a run directory; without one, all in this folder's runs. Safe to repeat. Exit code 3: what became of one is
    not known yet.
    """
    from slurmgpu.files.run_record import read_run
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.select import run_directories, settle

    slurm = own_slurm(ctx)
    folder = runs_by_settings(Path.cwd(), os.environ)(Path.cwd())
    open_runs = []
    for path in runs or run_directories(folder):
        try:
            record = read_run(path)
        except InvalidInput:
            if runs:
                raise
            continue  # a local run has none
        if record.job_id is None and (runs or record.state != "not submitted"):
            open_runs.append(path)
        elif runs:
            click.echo(printable(f"{path}: job {record.job_id}"))
    if not runs and not open_runs:
        some = next(run_directories(folder), None) is not None
        said = f"every run in {folder} is settled" if some else f"there are no runs of yours in {folder}"
        click.echo(printable(said), err=True)
    settled = [(path, settle(slurm, path, datetime.now(timezone.utc))) for path in open_runs]
    for path, one in settled:
        doubt = f" ({one.why})" if one.why else ""
        if one.outcome == "unknown":
            said = f"not known: {one.why}"
        elif one.outcome == "job":
            said = f"job {one.run.job_id}{doubt}"
        else:
            said = f"Slurm has no such job{doubt}; slurmgpu resume {path} submits it"
        click.echo(printable(f"{path}: {said}"))
    if any(one.outcome == "unknown" for _, one in settled):
        ctx.exit(OutcomeUnknown.exit_code)
