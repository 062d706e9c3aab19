"""``slurmgpu logs``: show the log of a job."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.asked import Lines
from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.gathering import gathered
from slurmgpu.interrupts import as_interrupts


@click.command("logs")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, shell_complete=jobs_by_tab)
@gathered(
    "lines",
    Lines,
    click.option(
        "-n", "--lines", "last", type=click.IntRange(min=0), help="Only the last lines of each log."
    ),
    click.option(
        "--rank",
        type=click.IntRange(min=0),
        help="Only what this rank wrote: its own file, or lines that begin with it ([rank3]:, 3:).",
    ),
    click.option("--since", metavar="WHEN", help="Only lines since: 30m, 12h, 1d, 2w or a date."),
    click.option("--grep", "pattern", metavar="PATTERN", help="Only lines that match; a regular expression."),
    click.option(
        "-C", "--context", type=click.IntRange(min=0), help="Lines around each one that --grep finds."
    ),
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until the job ends.")
@click.option("--prefix", is_flag=True, help="Begin each line with who wrote it, in place of headers.")
@click.option("--stdout", "stream", flag_value="stdout", help="Leave out logs of standard error alone.")
@click.option("--stderr", "stream", flag_value="stderr", help="Leave out logs of standard output alone.")
@click.option("--path", "paths", is_flag=True, help="Print where the logs are instead.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Show the logs of a job.

    JOB is a job id (112; 112_3 for one task of an array), a job name, or a run directory; without one, your newest
    job. Where a job has several logs (standard error apart, tasks of an array, ranks), a header comes above each.
    """
    from slurmgpu.cli.actions.logs import act

    with as_interrupts():
        act(ctx, **given)
