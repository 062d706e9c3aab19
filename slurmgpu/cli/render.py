"""``slurmgpu render``: print the batch script of a job."""

from __future__ import annotations

from pathlib import Path

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--to",
    "to",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the script to a file.",
)
def command(given: dict[str, object], to: Path | None) -> None:
    """Print the batch script of a job, or write it to a file.

    The script is plain text that sbatch takes as it is.
    """
    from slurmgpu.runs.prepare import prepare

    prepared = prepare(given, note)
    prepared.mention_files_to_make(note)
    script = prepared.render(to.name if to else None)
    if to is None:
        click.echo(script, nl=False)
        return
    _write(to, script, overwrite=bool(given.get("force")))
    note(f"wrote {to}; its second line says how to submit it by hand")


def _write(to: Path, script: str, *, overwrite: bool) -> None:
    """Write the script; InvalidInput where a file with other lines would be lost."""
    from slurmgpu.files.trust import write_atomically

    try:
        there = to.read_bytes() if to.is_file() else None
        if there is not None and there != script.encode() and not overwrite:
            raise InvalidInput(
                f"--to {to}: the file is there, and has other lines",
                hint="give another name, or --force to replace it",
            )
        if to.exists() and not to.is_file():  # /dev/stdout, or a pipe
            to.write_text(script, encoding="utf-8")
        else:
            write_atomically(to, script)
    except OSError as error:
        raise InvalidInput(
            f"--to {to}: {error.strerror}", hint="give a file in a folder that is there"
        ) from None
