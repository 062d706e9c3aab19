"""``slurmgpu import``: a batch script -> a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("import")
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "--to",
    "to",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the job file; one that is there stays.",
)
@click.option("--force", is_flag=True, help="With --to: replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: Any) -> None:
    """Make a job file of a batch script, and print it.

    Rendered again, it asks Slurm for exactly what the script asks for. No line of the script gets lost. `-` reads
    the script from standard input.
    """
    from slurmgpu.cli.actions.import_ import act

    act(**given)
