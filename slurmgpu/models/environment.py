"""What a job finds around it: modules, a container, a Python, variables and secrets."""

import re
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Strict,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import Self

from slurmgpu.models.base import EnvName, JobPath, JobText, Model, OptionValue, Text, Word, Words
from slurmgpu.models.kinds import RUNTIMES, OneOf

__all__ = [
    "Conda",
    "Container",
    "Environment",
    "Modules",
    "Or",
    "PythonEnvironment",
    "Secrets",
    "Venv",
    "alone",
]

Secrets = tuple[EnvName, ...]
"""Names of variables whose values never stand in a script, an argument or a listing."""


class Modules(Model):
    """Environment modules (Lmod or Environment Modules), in the order in which a shell would run them."""

    purge: bool = False
    """Whether to run `module purge` first."""
    use: Annotated[tuple[JobPath, ...], Strict(False)] = ()
    """Folders for `module use`, before anything is loaded."""
    load: Words = ()
    """Modules to load, in order, as in `load: [cuda/12.4, pytorch/2.9]`; one that does not load ends the job."""


def _modules_alone(value: object) -> object:
    if isinstance(value, str):
        value = value.split()
    return {"load": tuple(value)} if isinstance(value, (list, tuple)) else value


class Or:
    """JSON Schema of a model that a file may write shorter."""

    def __init__(self, *shorter: dict[str, object] | OneOf) -> None:
        self._shorter = shorter

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        shorter = [one.json_schema() if isinstance(one, OneOf) else one for one in self._shorter]
        return {"anyOf": [handler(schema), *shorter]}


_TEXT: dict[str, object] = {"type": "string"}


def alone(field: str) -> BeforeValidator:
    """A text stands for a model in which only this field is given."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)


class Container(Model):
    """A container image and how it is entered."""

    runtime: Annotated[str, OneOf(RUNTIMES)] = "apptainer"
    """The program that runs the image."""
    image: JobPath
    """The image: a file, or a docker:// or library:// address."""
    mode: Literal["exec", "run"] = "exec"
    """exec: the whole command runs in the image; run: the image's own runscript gets the command's words."""
    gpu: Literal["nvidia", "amd", "none"] = "nvidia"
    """Which GPU libraries of the host enter the image: nvidia (`--nv`), amd (`--rocm`), or none."""
    binds: Annotated[tuple[JobPath, ...], Strict(False)] = ()
    """Folders of the host to see inside (`--bind`), PATH or HOST:INSIDE[:ro], as in `binds: [$SCRATCH, "/data:/data:ro"]`."""
    options: Words = ()
    """Further options of the runtime, one word each, as in `options: [--cleanenv]`."""

    @field_validator("image")
    @classmethod
    def _no_option(cls, image: str) -> str:
        if image.startswith("-"):
            raise ValueError(
                f"{image!r} begins with a dash, and the runtime would take it for an option; write ./{image}"
            )
        return image


class Conda(Model):
    """A conda (mamba, micromamba) environment."""

    env: JobPath
    """The environment's name, or its folder."""
    root: JobPath | None = None
    """Where conda is installed, the folder with etc/profile.d/conda.sh; left out, the script looks on PATH and in the
    usual folders."""


class Venv(Model):
    """A virtual environment."""

    path: JobPath
    """The environment's folder, the one with bin/activate."""


class PythonEnvironment(Model):
    """Which Python runs the command: a conda environment, a virtual environment, or the one on PATH."""

    conda: Annotated[Conda | None, alone("env"), Or(_TEXT)] = None
    """A conda environment to activate; its name or folder alone will do, as in `conda: torch`."""
    venv: Annotated[Venv | None, alone("path"), Or(_TEXT)] = None
    """A virtual environment to activate; its folder alone will do, as in `venv: $HOME/venvs/torch`."""
    interpreter: JobPath = "python3"
    """The interpreter that runs a training task, as in `interpreter: python3.12`; a command names its own."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.conda and self.venv:
            raise ValueError("conda and venv are both given; keep one of the two")
        return self


class Environment(Model):
    """Modules, container, Python and variables under one name."""

    description: Text | None = None
    """What it is, for people who read the profile or a listing."""
    modules: Annotated[
        Modules | None, BeforeValidator(_modules_alone), Or(_TEXT, {"type": "array", "items": _TEXT})
    ] = None
    """Environment modules to load; a name or a list of names alone will do, as in `modules: cuda/12.4`."""
    container: Annotated[Container | None, alone("image"), Or(_TEXT)] = None
    """The container that the command runs in; its image alone will do, as in `container: torch.sif`."""
    python: PythonEnvironment = PythonEnvironment.model_construct()
    """The Python that runs the command. A container has its own: conda or venv are then activated on the host before it."""
    variables: dict[EnvName, JobText] = Field(default_factory=dict)
    """Variables to export, as in `variables: {NCCL_DEBUG: WARN}`; `$NAME` in a value expands when the job runs, and the
    job's own variables win."""
    sbatch: dict[Word, OptionValue] = Field(default_factory=dict)
    """sbatch options of the site's plug-ins that set it up, by their long names, as in `sbatch: {uenv: pytorch/v2.8.0}`;
    the job's own `sbatch` wins."""
    srun_options: tuple[Text, ...] = ()
    """Further options of every srun in it, one word each, as in `srun_options: [--environment=ngc-pytorch]`."""

    @field_validator("sbatch")
    @classmethod
    def _long_names(cls, options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        for name in options:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ValueError(
                    f"{name!r} is not a long option of sbatch; write it without dashes in front, in lower case"
                )
        return options


EnvironmentChoice = Annotated[
    Annotated[Word, Tag("<name>")] | Annotated[Environment, Tag("<inline>")],
    # A choice by kind: a mistake inside one is not also reported as not being the other.
    Discriminator(lambda value: "<name>" if isinstance(value, str) else "<inline>"),
    Field(
        description="The name of an environment that the cluster's profile or the settings define, or one inline."
    ),
]
