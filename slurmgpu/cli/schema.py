"""``slurmgpu schema``: the JSON Schema of job, cluster and settings files, so that editors complete them."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("what", type=click.Choice(["job", "cluster", "settings"]))
def command(what: str) -> None:
    """Print the JSON Schema of job, cluster or settings files.

    Point the editor's YAML server at the output: slurmgpu schema job > job.schema.json, and begin the file
    with `# yaml-language-server: $schema=job.schema.json`.
    """
    from pydantic import BaseModel

    from slurmgpu.files.settings import Settings
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.job import Job

    models: dict[str, type[BaseModel]] = {"job": Job, "cluster": Cluster, "settings": Settings}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **models[what].model_json_schema()}
    click.echo(json.dumps(schema, indent=2, ensure_ascii=False))
