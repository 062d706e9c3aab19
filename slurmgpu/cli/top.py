"""`slurmgpu top`: jobs, logs and free GPUs on the whole terminal."""

from __future__ import annotations

from typing import Any

import click


@click.command("top")
@click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them.")
@click.option("--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d).")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Watch my jobs on the whole terminal: how far they are, why they wait or failed, their logs, and which GPUs are free.

    Keys show details, follow logs, filter and sort; ? lists them. Capital letters change a job (cancel, hold, release,
    requeue, resume), of your own jobs only, and ask first. Needs the extra `top`.
    """
    from slurmgpu.cli.actions.top import act

    act(ctx, **given)
