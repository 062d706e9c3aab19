"""``slurmgpu runs``: what the run directories say of their jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.group("runs", no_args_is_help=True)
def command() -> None:
    """Run directories: what became of submissions that had no answer."""


@command.command("settle")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.pass_context
def settle_runs(ctx: click.Context, /, **given: Any) -> None:
    """Ask Slurm which jobs my submissions became, where run.json does not say so, and write it there.

    RUN is a run directory; without one, all in this folder's runs. Safe to repeat. Exit code 3: what became of one is
    not known yet.
    """
    from slurmgpu.cli.actions.runs import act_settle

    act_settle(ctx, **given)
