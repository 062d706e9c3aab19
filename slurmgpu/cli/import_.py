"""``slurmgpu import``: a batch script -> a job file."""

from __future__ import annotations

from pathlib import Path

import click

from slurmgpu.cli.terminal import echo_json, note
from slurmgpu.errors import InvalidInput


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
def command(script: Path, to: Path | None, force: bool, as_json: bool) -> None:
    """Make a job file of a batch script, and print it.

    Rendered again, it asks Slurm for exactly what the script asks for. No line of the script gets lost. `-` reads
    the script from standard input.
    """
    from slurmgpu.files.job_text import job_text
    from slurmgpu.files.yaml import read_batch_script
    from slurmgpu.script.importing import import_script

    if to is not None and as_json:
        raise InvalidInput("--to writes a job file, and --json prints JSON", hint="leave one out")
    imported = import_script(read_batch_script(script), "the script" if str(script) == "-" else str(script))
    for line in imported.notes:
        note(line)
    if as_json:
        document = {"schema": "slurmgpu.import/1", "job": imported.data, "notes": imported.notes}
        echo_json(document)
        return
    text = job_text(imported.data, head=imported.head, before=imported.before, beside=imported.beside)
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        with to.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(f"--to {to}: is there already", hint="give another name, or --force") from None
    except OSError as error:
        raise InvalidInput(
            f"--to {to}: {error.strerror}", hint="give a file in a folder that is there"
        ) from None
    note(f"wrote {to}; `slurmgpu render {to}` prints its script")
