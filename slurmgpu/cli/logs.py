"""``slurmgpu logs``: show the log of a job."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import jobs as jobs_by_tab


@click.command("logs")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=jobs_by_tab)
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last lines of each log.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until the job ends.")
@click.option("--stdout", "stream", flag_value="stdout", help="Leave out logs of standard error alone.")
@click.option("--stderr", "stream", flag_value="stderr", help="Leave out logs of standard output alone.")
@click.option("--path", "paths", is_flag=True, help="Print where the logs are instead.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Show the logs of a job.

    JOB is a job id (112; 112_3 for one task of an array), a job name, or a run directory. Where a job has several
    logs (standard error apart, tasks of an array, tasks of submitit), a header comes above each.
    """
    from slurmgpu.cli.actions.logs import act

    act(ctx, **given)
