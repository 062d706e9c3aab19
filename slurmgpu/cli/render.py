"""``slurmgpu render``: print the batch script of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--to",
    "to",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the script to a file.",
)
def command(given: dict[str, Any], to: Path | None) -> None:
    """Print the batch script of a job, or write it to a file.

    The script is plain text that sbatch takes as it is.
    """
    from slurmgpu.cli.preparing import note, prepare
    from slurmgpu.errors import InvalidInput

    script = prepare(given).render(to.name if to else None)
    if to is None:
        click.echo(script, nl=False)
        return
    try:
        to.write_text(script, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"--to {to}: {error.strerror}", hint="give a file in a folder that is there"
        ) from None
    note(f"wrote {to}; its second line says how to submit it by hand")
