"""`slurmgpu status`: the queue, live use and finished jobs."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.asked import How, Which
from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.filters import FILTERS
from slurmgpu.cli.gathering import gathered
from slurmgpu.interrupts import as_interrupts


@click.command("status")
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=jobs_by_tab)
@gathered(
    "which",
    Which,
    click.option("--user", metavar="NAME", help="That user's jobs, as far as the site shows them."),
    click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them."),
    click.option(
        "--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d)."
    ),
    *FILTERS,
)
@gathered(
    "how",
    How,
    click.option("--tasks", "each_task", is_flag=True, help="Each task of an array in a line of its own."),
    click.option(
        "--columns", metavar="LIST", help="These columns, in this order; +LIST adds to the usual ones."
    ),
    click.option(
        "--sort", metavar="LIST", help="By these columns; - turns one round: state,-elapsed (default by id)."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document (with --watch: one a line)."),
)
@click.option("--live", is_flag=True, help="What jobs use: running ones by asking their nodes.")
@click.option("--watch", is_flag=True, help="Ask again every 30 s; ends when all JOBs named have finished.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Show my jobs: waiting, running, and finished in the last day.

    JOB is a job id (112, 112_3), a job name, or a run directory. Jobs named by id are found whatever their
    age; exit code 1 when one is named that Slurm does not know, 3 when the queue could not be asked for it.
    Where Slurm does not answer at all, what it said last is shown with its age, and the exit code is 4.
    """
    from slurmgpu.cli.actions.status import act

    with as_interrupts():
        act(ctx, **given)
