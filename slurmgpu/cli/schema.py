"""``slurmgpu schema``: the JSON Schema of job, cluster and settings files, so that editors complete them."""

from __future__ import annotations

from typing import Literal

import click

Kind = Literal["job", "cluster", "settings"]
KINDS: tuple[Kind, ...] = ("job", "cluster", "settings")


@click.command()
@click.argument("what", type=click.Choice(KINDS))
def command(what: Kind) -> None:
    """Print the JSON Schema of job, cluster or settings files.

    Point the editor's YAML server at the output: slurmgpu schema job > job.schema.json, and begin the file
    with `# yaml-language-server: $schema=job.schema.json`.
    """
    from slurmgpu.cli.actions.schema import act

    act(what)
