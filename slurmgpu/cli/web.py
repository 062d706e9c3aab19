"""``slurmgpu web``: the script generator and the runs in a browser."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.terminal import note
from slurmgpu.errors import SlurmGpuError
from slurmgpu.interrupts import as_interrupts

if TYPE_CHECKING:
    from slurmgpu.jobs.live import Source
    from slurmgpu.models.run import JobStatus


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
    "--behind",
    metavar="URL",
    help="The address at which a reverse proxy, such as Open OnDemand's, shows this server; nobody else is answered then.",
)
@click.option(
    "--listen",
    metavar="HOST",
    help="With --behind: listen on this name or address of this machine, where the proxy is on another one.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Take the token from a file that only you can read (default: a new one, which is printed).",
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
def command(
    ctx: click.Context,
    port: int,
    unix_socket: Path | None,
    behind: str | None,
    listen: str | None,
    token_file: Path | None,
    idle: float,
    since: str | None,
    login_node: str | None,
    directory: Path | None,
    cluster: str | None,
    parts: Path | None,
    fetch: bool,
) -> None:
    """Serve the script generator and your runs to your own browser, until Ctrl-C.

    Prints the address, which has a token that no one else knows, and the line of ssh that leads there from your own computer.
    Job files are made and submitted in this folder. Nothing comes from the internet. Needs the extra `web`.
    """
    from slurmgpu.jobs.select import current_user, since_moment

    if directory is not None:
        export_page(directory, cluster, parts, fetch)
        return
    for name, value in (("cluster", cluster), ("parts", parts), ("fetch", fetch)):
        if value:
            raise click.UsageError(f"--{name} goes with --export, which is not given")
    if listen and not behind:
        raise click.UsageError(
            "--listen goes with --behind, which is not given: without a proxy, only this machine is answered"
        )
    if behind and unix_socket:
        raise click.UsageError("--behind goes with a port, and not with --socket")
    if since:
        since_moment(since, datetime.now(timezone.utc))  # a mistake is said before the server starts
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise SlurmGpuError(
            "web needs Starlette and uvicorn, which are not installed here",
            hint="pip install 'slurmgpu[web]', or use: slurmgpu render, slurmgpu top",
        )
    from slurmgpu.cli.live_source import live_source, submit
    from slurmgpu.web.drawing import prepare
    from slurmgpu.web.generator import Generator
    from slurmgpu.web.http import Behind
    from slurmgpu.web.planned import planned, site
    from slurmgpu.web.runs import Runs
    from slurmgpu.web.server import addresses, guarded, listen_on_port, listen_on_socket, serve, token_of

    # What the first page needs is loaded before there is an address for it.
    prepare()
    planned({"command": "true"}, site(None, Path.cwd()).chosen, Path.cwd())
    token = secrets.token_urlsafe(32) if token_file is None else token_of(token_file)
    listening = listen_on_socket(unix_socket) if unix_socket else listen_on_port(port, listen)
    proxy = None
    if behind is not None:
        at = listening.getsockname()
        proxy = Behind.of(behind, f"{listen or at[0]}:{at[1]}", current_user())
    source = live_source(ctx, since)
    guard = guarded(
        Generator(Path.cwd(), submit), Runs(source, lambda job: _report_lines(source, job)), token, proxy
    )
    if proxy is not None:
        note("open this address:")
        click.echo(f"{proxy.origin}{proxy.prefix}/" + (f"?token={token}" if token_file is None else ""))
    else:
        address, ssh = addresses(listening, token, current_user(), login_node or socket.getfqdn())
        if unix_socket is None:
            note("open this address in a browser on this machine:")
        else:
            note("open this address, once the line of ssh below runs on your computer:")
        click.echo(address)
        note(f"from your own computer first: {ssh}")
    note("Ctrl-C ends it")
    sys.stdout.flush()
    try:
        with as_interrupts():
            was_idle = serve(guard, listening, idle * 60)
    except KeyboardInterrupt as error:
        if type(error) is not KeyboardInterrupt:
            raise
        was_idle = False
    note(f"ended: nobody has asked anything for {idle:g} minutes (--idle)" if was_idle else "ended")


def export_page(directory: Path, cluster: str | None, parts: Path | None, fetch: bool) -> None:
    from slurmgpu.web.export import download, export
    from slurmgpu.web.export import parts as needed

    folder = parts or Path.home() / ".cache" / "slurmgpu" / "browser"
    for part in needed() if fetch else ():
        download(part, folder)
    made = export(directory, cluster, Path.cwd(), folder)
    click.echo(made.page)
    note(f"{made.size / 1e6:.1f} MB; open it in a browser, or copy the folder to a web site")


def _report_lines(source: Source, job: JobStatus) -> list[str]:
    """Return the lines of ``slurmgpu report JOB``."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings
    from slurmgpu.jobs.report import text
    from slurmgpu.jobs.report.gathering import report_on_jobs
    from slurmgpu.jobs.select import select

    try:
        cluster = choose_cluster(None, load_settings(Path.cwd()), os.environ)[0]
    except SlurmGpuError:
        cluster = None  # a report needs none
    found = report_on_jobs(
        source.looking,
        select([job.job_id]),
        user=source.user,
        since=None,
        run_for=source.run_of,
        cluster=cluster,
    )
    carbon = cluster.carbon if cluster else None
    lines = [line for one in found.jobs for line in text.job_lines(one, carbon, bars=True)]
    return lines or [*found.notes, "Nothing is known yet of what it used."]
