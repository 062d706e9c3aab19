"""``slurmgpu logs``: show the log of a job."""

from __future__ import annotations

import os
from pathlib import Path

import click

__all__ = ["command"]


@click.command("logs")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until the job ends.")
@click.option("--path", "paths", is_flag=True, help="Print where the logs are, not what stands in them.")
@click.pass_context
def command(ctx: click.Context, jobs: tuple[str, ...], lines: int | None, follow: bool, paths: bool) -> None:
    """Show the log of a job.

    JOB is a job id (112; 112_3 for one task of an array), a job name, or a run directory.
    """
    from slurmgpu.cli.preparing import note
    from slurmgpu.errors import InvalidInput
    from slurmgpu.files.settings import load_settings, runs_folder
    from slurmgpu.monitoring.logs import end_of, find_logs
    from slurmgpu.monitoring.logs import follow as follow_log
    from slurmgpu.monitoring.runs import run_of_job
    from slurmgpu.monitoring.select import current_user, select
    from slurmgpu.slurm.call import Slurm

    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()
    selections = select(jobs)
    runs = runs_folder(load_settings(Path.cwd()).settings.runs, Path.cwd(), os.environ)
    logs = find_logs(slurm, selections, current_user(), lambda job: run_of_job(job, runs))
    if follow and len(logs) > 1:
        raise InvalidInput(
            f"--follow shows one log, and {' '.join(jobs)} has {len(logs)}",
            hint=f"name one of them: slurmgpu logs --follow {logs[0].job_id}",
        )
    missing = False
    for log in logs:
        if log.path is None:
            note(f"job {log.job_id}: {log.why}")
            missing = True
            continue
        if paths:
            click.echo(log.path)
            continue
        if len(logs) > 1:
            click.echo(click.style(f"==> job {log.job_id}: {log.path} <==", bold=True))
        text, size = end_of(log.path, lines)
        click.echo(text, nl=False)
        if not log.path.exists():
            note(f"job {log.job_id}: {log.path} is not there yet{f'; {log.why}' if log.why else ''}")
        if follow:
            try:
                follow_log(
                    slurm,
                    selections[0],
                    log,
                    size,
                    user=current_user(),
                    write=lambda piece: click.echo(piece, nl=False),
                )
            except KeyboardInterrupt:
                note(f"job {log.job_id} goes on; `slurmgpu cancel {log.job_id}` ends it")
                raise
    if missing:
        ctx.exit(1)
