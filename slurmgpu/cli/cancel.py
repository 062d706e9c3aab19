"""`slurmgpu cancel`: end jobs, and say what became of each."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import live_jobs


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=live_jobs)
@click.option("--signal", metavar="NAME", help="Only send this signal to the jobs' steps, such as USR1.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Cancel jobs and wait a few seconds until the queue shows that they end.

    JOB is a job id (112; 112_3 for one task of an array), the name of jobs of mine, or a run directory.
    """
    from slurmgpu.cli.actions.cancel import act

    act(ctx, **given)
