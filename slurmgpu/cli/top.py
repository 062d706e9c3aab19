"""`slurmgpu top`: jobs, logs and free GPUs on the whole terminal."""

from __future__ import annotations

import importlib.util
import os
import sys
from datetime import datetime, timezone

import click

from slurmgpu.errors import SlurmGpuError


@click.command("top")
@click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them.")
@click.option("--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d).")
@click.pass_context
def command(ctx: click.Context, all_users: bool, since: str | None) -> None:
    """Watch my jobs on the whole terminal: how far they are, why they wait or failed, their logs, and which GPUs are free.

    Keys show details, follow logs, filter and sort; ? lists them. Capital letters change a job (cancel, hold, release,
    requeue, resume), of your own jobs only, and ask first. Needs the extra `top`.
    """
    from slurmgpu.jobs.select import since_moment

    if since:
        since_moment(since, datetime.now(timezone.utc))  # a mistake is said before the screen is taken
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") in (None, "", "dumb"):
        raise SlurmGpuError(
            "top needs a terminal, and this is none that it can draw on",
            hint="slurmgpu status prints the same once, slurmgpu status --watch again and again",
        )
    if importlib.util.find_spec("textual") is None:
        raise SlurmGpuError(
            "top needs Textual, which is not installed here",
            hint="pip install 'slurmgpu[top]', or use: slurmgpu status --watch",
        )
    from slurmgpu.cli.live_source import live_source
    from slurmgpu.top.app import Top
    from slurmgpu.top.jobs import JobsScreen

    # No mouse: the terminal's own selection goes on working.
    Top(live_source(ctx, since, all_users=all_users), JobsScreen()).run(mouse=False)
