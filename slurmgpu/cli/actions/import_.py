"""What ``slurmgpu import`` does."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slurmgpu.cli.preparing import note
from slurmgpu.errors import InvalidInput
from slurmgpu.files.job_text import job_text
from slurmgpu.files.yaml import read_batch_script
from slurmgpu.script.importing import import_script


def act(script: Path, to: Path | None, force: bool, as_json: bool) -> None:
    if to is not None and as_json:
        raise InvalidInput("--to writes a job file, and --json prints JSON", hint="leave one out")
    imported = import_script(read_batch_script(script), "the script" if str(script) == "-" else str(script))
    for line in imported.notes:
        note(line)
    if as_json:
        document = {"schema": "slurmgpu.import/1", "job": imported.data, "notes": imported.notes}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
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
