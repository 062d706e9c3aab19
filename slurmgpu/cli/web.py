"""``slurmgpu web``: the script generator and the runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from slurmgpu.cli.gathering import gathered


class Where(NamedTuple):
    """Where the server listens, and whom it answers."""

    port: int
    unix_socket: Path | None
    behind: str | None
    listen: str | None
    token_file: Path | None


@click.command("web")
@gathered(
    "where",
    Where,
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=0,
        help="The port on this machine's loopback (default: a free one).",
    ),
    click.option(
        "--socket",
        "unix_socket",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="Listen on a Unix socket instead, which no other user of this machine reaches.",
    ),
    click.option(
        "--behind",
        metavar="URL",
        help="The address at which a reverse proxy, such as Open OnDemand's, shows this server; nobody else is answered then.",
    ),
    click.option(
        "--listen",
        metavar="HOST",
        help="With --behind: listen on this name or address of this machine, where the proxy is on another one.",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Take the token from a file that only you can read (default: a new one, which is printed).",
    ),
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
@click.option(
    "--export",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Serve nothing: write the generator as a page for a web site that needs no server: Python runs in the browser.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="With --export: the cluster that the page is for (default: the one in use).",
)
@click.option(
    "--parts",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="With --export: where Python for browsers is (default: ~/.cache/slurmgpu/browser).",
)
@click.option(
    "--fetch", is_flag=True, help="With --export: download what is missing there, with npm and pip."
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Serve the script generator and your runs to your own browser, until Ctrl-C.

    Prints the address, which has a token that no one else knows, and the line of ssh that leads there from your own computer.
    Job files are made and submitted in this folder. Nothing comes from the internet. Needs the extra `web`.
    """
    from slurmgpu.cli.actions.web import act, export_page

    page = {name: given.pop(name) for name in ("directory", "cluster", "parts", "fetch")}
    if page["directory"] is not None:
        export_page(**page)
        return
    named = [f"--{name}" for name in ("cluster", "parts", "fetch") if page[name]]
    if named:
        raise click.UsageError(f"{named[0]} goes with --export, which is not given")
    where: Where = given["where"]
    if where.listen and not where.behind:
        raise click.UsageError(
            "--listen goes with --behind, which is not given: without a proxy, only this machine is answered"
        )
    if where.behind and where.unix_socket:
        raise click.UsageError("--behind goes with a port, and not with --socket")
    act(ctx, **given)
