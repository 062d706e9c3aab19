"""``slurmgpu schema``: the JSON Schema of job, cluster and settings files, so that editors complete them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.terminal import echo_json
from slurmgpu.errors import InvalidInput

if TYPE_CHECKING:
    from slurmgpu.files.schema import Kind

KINDS: tuple[Kind, ...] = ("job", "cluster", "settings")


@click.command()
@click.argument("what", type=click.Choice(KINDS))
def command(what: Kind) -> None:
    """Print the JSON Schema of job, cluster or settings files.

    Point the editor's YAML server at the output: slurmgpu schema job > job.schema.json, and begin the file
    with `# yaml-language-server: $schema=job.schema.json`.
    """
    from slurmgpu.files.schema import schema_of
    from slurmgpu.files.settings import load_settings

    with suppress(InvalidInput):  # a settings file that is still being written
        load_settings(Path.cwd())  # they may name launchers of the user's
    echo_json(schema_of(what))
