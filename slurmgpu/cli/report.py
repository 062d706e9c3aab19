"""``slurmgpu report``: what jobs asked for, what they used, and what to ask for next time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.asked import Reported
from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.filters import FILTERS
from slurmgpu.cli.gathering import gathered


@click.command("report")
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=jobs_by_tab)
@gathered(
    "which",
    Reported,
    click.option("--user", metavar="NAME", help="That user's jobs, as far as the site shows them."),
    click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them."),
    click.option(
        "--since", metavar="WHEN", help="Jobs that ran since: 30m, 12h, 7d, 2w or a date (default 7d)."
    ),
    *FILTERS,
)
@click.option("--list", "each", is_flag=True, help="A line for each job, arrays taken together.")
@click.option(
    "--apply",
    "apply",
    is_flag=True,
    help="Write the proposed request into the job file, and show what changes. A file after it is that job file.",
)
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a page with plots instead."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Show what jobs used of what they asked for, and what to ask for next time.

    JOB is a job id (112, 112_3), a job name, or a run directory. Without one: all jobs since WHEN, added up by user,
    account, partition and type of GPU.

    It works from Slurm's accounting, for any job. Of jobs of slurmgpu's it also reads the samples and metrics in the run
    directory. What is not known is said to be unknown, and nothing is proposed from it. Exit code 1 when a JOB is named that
    Slurm does not know, 3 when Slurm could not be asked for it.
    """
    from slurmgpu.cli.actions.report import act

    act(ctx, **given)
