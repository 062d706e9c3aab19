"""``slurmgpu check``: hold batch scripts against what Slurm will make of them."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import clusters


@click.command(short_help="Find what is wrong with batch scripts.")
@click.argument(
    "scripts",
    metavar="SCRIPT...",
    nargs=-1,
    required=True,
    type=click.Path(readable=False, allow_dash=True),
)
@click.option(
    "--cluster",
    "cluster_name",
    metavar="NAME",
    help="Add the rules of a cluster: a profile's name or file.",
    shell_complete=clusters,
)
@click.option(
    "--severity",
    type=click.Choice(["error", "warning", "hint"]),
    default="hint",
    show_default=True,
    help="Show nothing less severe.",
)
@click.option("--ignore", metavar="RULE", multiple=True, help="Leave out a rule; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """Find what is wrong with any batch scripts, before Slurm does; `-` reads standard input.

    Of a folder all batch scripts are checked that are in it and in its folders: files that start with `#!` and have an
    `#SBATCH` line. Of a Python script (`.py`) the training loop is read.

    An error: Slurm will not do what is written there. A warning: likely wrong. A hint: works, and could be better.
    Ends with exit code 1 where a script has errors, 2 where one cannot be read. The comment `# slurmgpu: ignore RULE` on
    a line, or on a line of its own above it, silences a rule there.
    """
    from slurmgpu.cli.actions.check import act

    act(**given)
