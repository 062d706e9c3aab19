"""``slurmgpu mcp``: a server for assistants, by the Model Context Protocol."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import click

from slurmgpu.errors import SlurmGpuError
from slurmgpu.printable import printable


@click.command("mcp")
@click.option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Work here; job files and scripts below it may be read (default: where it is started).",
)
@click.option(
    "--read-only", is_flag=True, help="Offer neither submit nor cancel, whatever the settings allow."
)
@click.option("--budget", is_flag=True, help="Show what assistants have submitted and what is left, and end.")
def command(folder: Path | None, read_only: bool, budget: bool) -> None:
    """Let an assistant read of jobs and clusters, by the Model Context Protocol on stdin and stdout; clients start it.

    Its tools show what plan, render, check, why, report, status, logs and `cluster gpus` show, of your own jobs. submit and
    cancel are there only where your own settings allow them (`mcp.allow`), within a budget in GPU-hours (`mcp.gpu_hours`).
    Each call is noted. docs/assistants.md has the settings of clients. Needs the extra `mcp`.
    """
    if budget:
        _show_budget()
        return
    if importlib.util.find_spec("mcp") is None:
        raise SlurmGpuError(
            "mcp needs the library mcp, which is not installed here", hint="pip install 'slurmgpu[mcp]'"
        )
    if sys.stdin is None or sys.stdin.isatty():
        raise SlurmGpuError(
            "mcp speaks with a client on stdin and stdout, and this is a terminal",
            hint="enter `slurmgpu mcp` as a command in the client's settings; slurmgpu mcp --budget shows what was submitted",
        )
    try:
        from slurmgpu.cli.mcp_tools import TOOLS
        from slurmgpu.mcp.server import serve
    except ImportError as error:
        raise SlurmGpuError(
            f"mcp needs release 2.3 or newer of the library mcp: {error}", hint="pip install 'slurmgpu[mcp]'"
        ) from None
    if folder is not None:
        os.chdir(folder)
    serve(TOOLS, read_only=read_only)


def _show_budget() -> None:
    """Print the budget, what is reserved, and for which jobs."""
    from slurmgpu.mcp.budget import Budget, allowed, hours, limit_of

    rules, book = allowed(), Budget(os.environ)
    entries, spent, limit = book.entries(), book.spent(), limit_of(rules)
    click.echo(f"allowed (mcp.allow): {', '.join(rules.allow) or 'nothing besides reading'}")
    click.echo(f"GPU-hours: {hours(spent)} reserved of {hours(limit)} (mcp.gpu_hours)")
    for once, entry in entries.items():
        job = f"job {entry.job_id}" if entry.job_id is not None else entry.state
        spent_on = "given back" if entry.state == "refused" else hours(entry.seconds)
        click.echo(printable(f"  {entry.time}  {spent_on}  {job}  {entry.name}  {once}"))
    click.echo(f"kept in {printable(str(book.path.parent))}", err=True)
