"""`slurmgpu why`: why a job waits, what it does, or why it ended."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.interrupts import as_interrupts


@click.command("why")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, shell_complete=jobs_by_tab)
@click.option(
    "--shapes", is_flag=True, help="Ask Slurm what would start sooner: fewer GPUs, less time, elsewhere."
)
@click.option("--all-users", is_flag=True, help="Everybody's jobs, where JOB is a name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Say why a job waits, or why it failed.

    For a job that waits: what it asks for, what is free and when, who is ahead, which limit holds it, when Slurm expects it
    to start, and what would let it start. For one that failed: which rank failed first, on which node, its own error, and
    the fix. For one that runs: since when, until when, and how far its training is.

    JOB is a job id (112, 112_3), a job name, or a run directory; without one, your newest job. Exit code
    1 when Slurm does not know a job, 3 when the queue could not be asked for it.
    """
    from slurmgpu.cli.actions.why import act

    with as_interrupts():
        act(ctx, **given)
