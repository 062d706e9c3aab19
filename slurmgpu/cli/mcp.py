"""``slurmgpu mcp``: a server for assistants, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


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
def command(**given: Any) -> None:
    """Let an assistant read of jobs and clusters, by the Model Context Protocol on stdin and stdout; clients start it.

    Its tools show what plan, render, check, why, report, status, logs and `cluster gpus` show, of your own jobs. submit and
    cancel are there only where your own settings allow them (`mcp.allow`), within a budget in GPU-hours (`mcp.gpu_hours`).
    Each call is noted. docs/assistants.md has the settings of clients. Needs the extra `mcp`.
    """
    from slurmgpu.cli.actions.mcp import act

    act(**given)
