"""``slurmgpu web``: the script generator and the runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("web")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port on this machine's loopback (default: a free one).",
)
@click.option(
    "--socket",
    "unix_socket",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Listen on a Unix socket instead, which no other user of this machine reaches.",
)
@click.option(
    "--idle",
    metavar="MINUTES",
    type=click.FloatRange(min=0),
    default=240,
    show_default=True,
    help="Stop when nobody has asked anything for so long; 0: never.",
)
@click.option("--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d).")
@click.option(
    "--login-node",
    metavar="HOST",
    help="What this machine is called from outside, for the printed line of ssh (default: its name).",
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Serve the script generator and your runs to your own browser, until Ctrl-C.

    Prints the address, which has a token that no one else knows, and the line of ssh that leads there from your own computer.
    Job files are made and submitted in this folder. Nothing comes from the internet. Needs the extra `web`.
    """
    from slurmgpu.cli.actions.web import act

    act(ctx, **given)
