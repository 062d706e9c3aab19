"""``slurmgpu schema``: the JSON Schema of job, cluster and settings files, so that editors complete them."""

from __future__ import annotations

import ast
import inspect
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from pydantic.json_schema import GenerateJsonSchema

from slurmgpu.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core.core_schema import ModelSchema


Kind = Literal["job", "cluster", "settings"]
KINDS: tuple[Kind, ...] = ("job", "cluster", "settings")


@click.command()
@click.argument("what", type=click.Choice(KINDS))
def command(what: Kind) -> None:
    """Print the JSON Schema of job, cluster or settings files.

    Point the editor's YAML server at the output: slurmgpu schema job > job.schema.json, and begin the file
    with `# yaml-language-server: $schema=job.schema.json`.
    """
    from slurmgpu.files.settings import load_settings

    with suppress(InvalidInput):  # a settings file that is still being written
        load_settings(Path.cwd())  # they may name launchers of the user's
    click.echo(json.dumps(schema_of(what), indent=2, ensure_ascii=False))


class _Described(GenerateJsonSchema):
    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, said in _docstrings(schema["cls"]).items():
            if name in made.get("properties", {}):
                field = made["properties"][name]
                field["description"] = " ".join(filter(None, (said, field.get("description"))))
        return made


def schema_of(what: Kind) -> dict[str, object]:
    """The JSON Schema of one kind of file; every field is described by its docstring in the model's source.

    The sources are read here, not as the classes are made (``use_attribute_docstrings`` of Pydantic): no other command
    waits for it.
    """
    from slurmgpu.files.settings import Settings
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.job import Job

    models: dict[Kind, type[BaseModel]] = {"job": Job, "cluster": Cluster, "settings": Settings}
    made = models[what].model_json_schema(schema_generator=_Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _docstrings(cls: type) -> dict[str, str]:
    """The text below each field of a class, those of its bases included, on one line."""
    found: dict[str, str] = {}
    for base in reversed([one for one in cls.__mro__ if one.__module__.startswith("slurmgpu.")]):
        (node,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name.rstrip("_")] = " ".join(text.split())
    return found
