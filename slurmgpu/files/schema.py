"""The JSON Schema of job, cluster and settings files, each field described by its docstring."""

from __future__ import annotations

import ast
import inspect
from typing import Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from slurmgpu.files.settings import Settings
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job

Kind = Literal["job", "cluster", "settings"]


class _Described(GenerateJsonSchema):
    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, said in _docstrings(schema["cls"]).items():
            if name in made.get("properties", {}):
                field = made["properties"][name]
                field["description"] = " ".join(filter(None, (said, field.get("description"))))
        return made


def schema_of(what: Kind) -> dict[str, object]:
    """Return the JSON Schema of one kind of file; every field is described by its docstring in the model's source.

    The sources are read here, not as the classes are made (``use_attribute_docstrings`` of Pydantic): no other command
    waits for it.
    """
    models: dict[Kind, type[BaseModel]] = {"job": Job, "cluster": Cluster, "settings": Settings}
    made = models[what].model_json_schema(schema_generator=_Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field of a class, those of its bases included, on one line."""
    found: dict[str, str] = {}
    for base in reversed([one for one in cls.__mro__ if one.__module__.startswith("slurmgpu.")]):
        (node,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name.rstrip("_")] = " ".join(text.split())
    return found
