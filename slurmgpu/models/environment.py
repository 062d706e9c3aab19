"""The environment of a job: modules, a container, a Python, variables and secrets."""

import re
from typing import Annotated, Literal, NamedTuple

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

from slurmgpu.models.base import (
    RUNTIMES,
    TEXT,
    Checked,
    EnvName,
    Hinted,
    JobPath,
    JobText,
    Model,
    OneOf,
    OptionValue,
    Text,
    Word,
    Words,
)

__all__ = [
    "Activated",
    "Conda",
    "Container",
    "Environment",
    "Modules",
    "Or",
    "Packed",
    "Pixi",
    "PythonEnvironment",
    "Secrets",
    "Uv",
    "Venv",
    "alone",
]

Secrets = tuple[EnvName, ...]
"""Names of variables whose values never stand in a script, an argument or a listing."""


def _module(name: str) -> str:
    if name in ("module", "ml"):
        raise Hinted(
            f"{name!r} is the shell's command, and only names of modules belong here",
            hint="leave the command out, as in modules: [cuda/12.4, pytorch/2.9]",
        )
    if name.startswith("-"):
        raise Hinted(
            f"{name!r} begins with a dash, which the module command takes for an option, or for an unload",
            hint=f"to unload a module, write unload: [{name.lstrip('-')}]",
        )
    if "," in name:
        raise Hinted(
            f"{name!r} has a comma in it, and the name of a module has none",
            hint=f"two modules are two entries of the list: [{', '.join(filter(None, map(str.strip, name.split(','))))}]",
        )
    if " " in name:
        raise Hinted(
            f"{name!r} has a blank in it, and the name of a module has none",
            hint=f"write {name.split()[-1]}: the list has names alone"
            if name.split()[0] in {"module", "ml"}
            else f"a version follows a slash, as in {'/'.join(name.split()[:2])}; two modules are two entries of the list",
        )
    return name


def _pairs(value: object) -> object:
    if isinstance(value, (list, tuple, str)):
        names = value.split() if isinstance(value, str) else [str(name) for name in value]
        old, new = names if len(names) == 2 else ("OLD", "NEW")
        raise Hinted(
            f"{value!r} does not say which module takes the place of which",
            hint=f"write swap: {{{old}: {new}}}",
        )
    return value


Module = Annotated[str, Checked(*TEXT, _module)]
"""The name of a module, usually NAME/VERSION."""
_ModuleNames = Annotated[tuple[Module, ...], Strict(False)]


class Modules(Model):
    """Environment modules (Lmod or Environment Modules), in the order in which a shell would run them."""

    purge: bool = False
    """Run `module purge` first."""
    reset: bool = False
    """Run `module reset` first, which brings back the modules that a login begins with."""
    use: Annotated[tuple[JobPath, ...], Strict(False)] = ()
    """Folders for `module use`, before anything is loaded."""
    unload: _ModuleNames = ()
    """Modules to unload, as in `unload: [gcc]`; one that is not loaded is no error."""
    swap: Annotated[dict[Module, Module], BeforeValidator(_pairs)] = Field(default_factory=dict)
    """Modules to put in the place of others, as in `swap: {PrgEnv-cray: PrgEnv-gnu}`."""
    load: _ModuleNames = ()
    """Modules to load, in order, as in `load: [cuda/12.4, pytorch/2.9]`; one that does not load ends the job."""

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        if self.purge and self.reset:
            raise Hinted(
                "purge and reset are both given, and each undoes the other",
                hint="keep purge for no modules at all, or reset for those of a login",
            )
        return self


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
    """Accept a text in place of a model in which only this field is given."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)


# Words of a bind's third part: apptainer's ro and rw, pyxis's (flags of mount) and podman's.
_FLAGS = """
ro rw z Z U O rec nocopy bind rbind exec noexec suid nosuid dev nodev private rprivate shared rshared slave rslave
unbindable runbindable
"""
_BIND_FLAGS = frozenset(_FLAGS.split())


def _bind(text: str) -> str:
    """HOST, HOST:INSIDE or HOST:INSIDE:FLAGS."""
    host, *rest = re.sub(r"\$\{[^}]*\}", "$X", text).split(":")
    example = 'write HOST or HOST:INSIDE[:ro], as in "/data:/data:ro"'
    if not host.strip():
        raise Hinted(f"{text!r} names no folder of the host before the colon", hint=example)
    if rest and not rest[0].startswith(("/", "$", "~/")):
        meant = f"write {host}:/{rest[0]}; " if re.fullmatch(r"[\w.-]+(/[\w.-]+)*", rest[0]) else ""
        raise Hinted(
            f"{text!r} has {rest[0]!r} as the folder inside, and that is an absolute path",
            hint=meant + example,
        )
    flags = [
        one for one in re.split(r"[,+]", ":".join(rest[1:])) if "=" not in one and not one.startswith("x-")
    ]
    if len(rest) > 1 and (wrong := [one for one in flags if one not in _BIND_FLAGS and "$" not in one]):
        raise Hinted(f"{text!r} ends in {wrong[0]!r}, where ro or rw is expected", hint=example)
    return text


class Container(Model):
    """A container image and how it is entered."""

    runtime: Annotated[str, OneOf(RUNTIMES)] = "apptainer"
    """The program that runs the image."""
    image: JobPath
    """The image, as the runtime names it: a file, an address such as docker://pytorch/pytorch, or a name in its store."""
    build: JobPath | None = None
    """The definition file that the image is built from before the job is submitted, if the image is not there (apptainer,
    singularity), as in `build: torch.def`."""
    mode: Literal["exec", "run"] = "exec"
    """exec: the whole command runs in the image; run: the image's own runscript gets the command's words."""
    gpu: Literal["nvidia", "amd", "intel", "none"] = "nvidia"
    """GPUs that the image sees: nvidia (`--nv`) and amd (`--rocm`) add libraries of the host, intel needs none; or none."""
    binds: Annotated[tuple[Annotated[JobPath, Checked(_bind)], ...], Strict(False)] = ()
    """Folders of the host to see inside (`--bind`), PATH or HOST:INSIDE[:ro], as in `binds: [$SCRATCH, "/data:/data:ro"]`."""
    overlay: JobPath | None = None
    """A file or folder with what is added to the image (apptainer, singularity), as in `overlay: data.img:ro`."""
    clean_env: bool = False
    """Keep the host's variables outside, except for the job's own, Slurm's, and those of torch and NCCL."""
    workdir: JobPath | None = None
    """The folder inside in which the command starts; left out, the job's work folder."""
    writable: bool = False
    """Let the command change the image's files; the changes are lost at the end of the job."""
    name: Word | None = None
    """Name of the container in pyxis, so that later steps of the job find it again with its changes."""
    view: Text | None = None
    """The view of a uenv that is set up, as in `view: default`."""
    options: Words = ()
    """Further options of the runtime, one word each, as in `options: [--cleanenv]`."""

    @field_validator("image")
    @classmethod
    def _no_option(cls, image: str) -> str:
        if image.startswith("-"):
            raise ValueError(
                f"{image!r} begins with a dash, and the runtime would take it for an option; write ./{image}"
            )
        address = re.match(r"[a-z0-9-]+://", image)
        if image != image.strip() or (address and re.search(r"\s", image)):
            raise Hinted(
                f"{image!r} has a blank in it, and {'an address has none' if address else 'no image begins or ends with one'}",
                hint=f"write it without: {''.join(image.split()) if address else image.strip()}",
            )
        return image

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, workdir: str | None) -> str | None:
        if workdir is not None and not workdir.startswith(("/", "$", "~/")):
            raise Hinted(
                f"{workdir!r} is a relative path, and nothing inside says against which folder",
                hint=f"write the whole path, as in workdir: /{workdir.removeprefix('./')}; "
                "left out, the command starts in the work folder",
            )
        return workdir


def _conda_name(env: str) -> str:
    command = re.fullmatch(r"(?:(?:conda|mamba|micromamba|source)\s+)?activate\s+(.+)", env.strip())
    if command is None and ("/" in env or not re.search(r"\s", env)):
        return env
    name = (command[1] if command else env).split()[-1]
    raise Hinted(
        f"{env!r} {'is a command' if command else 'has a blank in it'}, and a name or folder is expected here",
        hint=f"write the environment's name alone, as in conda: {name}",
    )


class Conda(Model):
    """A conda (mamba, micromamba) environment."""

    env: Annotated[JobPath, Checked(_conda_name)]
    """The environment's name, or its folder."""
    root: JobPath | None = None
    """Where conda is installed, the folder with etc/profile.d/conda.sh; left out, the script looks on PATH and in the
    usual folders."""


class Venv(Model):
    """A virtual environment."""

    path: JobPath
    """The environment's folder, the one with bin/activate."""


class Uv(Model):
    """The environment of a uv project, as `uv sync` made it."""

    project: JobPath
    """The project's folder, the one with pyproject.toml and `.venv`."""


class Pixi(Model):
    """An environment of a pixi project, as `pixi install` made it."""

    project: JobPath
    """The project's folder, the one with `.pixi`."""
    env: Word = "default"
    """The environment's name in the project."""


class Activated(NamedTuple):
    """An environment that a job activates."""

    kind: str
    """conda, venv, uv or pixi: its key in a file."""
    where: str
    """Its folder, or the name that conda knows it by."""


class Packed(Model):
    """An environment that was packed for the nodes' own disks."""

    kind: str
    """As of `Activated`."""
    prefix: str
    """Its folder, which all nodes share."""
    archive: str
    """The file that it is packed in; its name ends in .tar or .tar.zst."""
    mib: int
    """Its size once unpacked."""
    base: str | None = None
    """The folder of the interpreter that a virtual environment was made from, where that is packed, too."""


class PythonEnvironment(Model):
    """The Python that runs the command: of a conda, virtual, uv or pixi environment, or the one on PATH."""

    conda: Annotated[Conda | None, alone("env"), Or(_TEXT)] = None
    """A conda environment to activate; its name or folder alone will do, as in `conda: torch`."""
    venv: Annotated[Venv | None, alone("path"), Or(_TEXT)] = None
    """A virtual environment to activate; its folder alone will do, as in `venv: $HOME/venvs/torch`."""
    uv: Annotated[Uv | None, alone("project"), Or(_TEXT)] = None
    """A uv project whose `.venv` to activate; its folder alone will do, as in `uv: $HOME/project`. Nothing is resolved,
    downloaded or installed on a node: run `uv sync` before you submit."""
    pixi: Annotated[Pixi | None, alone("project"), Or(_TEXT)] = None
    """A pixi project with the environment to activate; its folder alone will do, as in `pixi: $HOME/project`. Nothing is
    resolved, downloaded or installed on a node: run `pixi install` before you submit."""
    interpreter: JobPath = "python3"
    """The interpreter that runs a training task, as in `interpreter: python3.12`; a command names its own."""
    stage: Literal["node"] | None = None
    """node: the environment is packed into one file before the job is submitted, and unpacked on each node's own disk, so
    that hundreds of processes do not import torch from a shared file system at once."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in ("conda", "venv", "uv", "pixi") if getattr(self, kind) is not None]
        if len(given) > 1:
            raise Hinted(
                f"{' and '.join(given)} are both given, and a job has one Python", hint="keep one of the two"
            )
        if self.stage and not given:
            raise Hinted(
                "stage: node packs an environment, and none is named; a module's Python stays where it is installed",
                hint="name the environment beside it, as in python: {venv: $HOME/venvs/torch, stage: node}, or leave stage out",
            )
        return self

    @property
    def activated(self) -> Activated | None:
        """Return the environment to activate, by its folder or name; None if there is none."""
        if self.conda:
            return Activated("conda", self.conda.env)
        if self.venv:
            return Activated("venv", self.venv.path)
        if self.uv:
            return Activated("uv", f"{self.uv.project}/.venv")
        return Activated("pixi", f"{self.pixi.project}/.pixi/envs/{self.pixi.env}") if self.pixi else None


class Environment(Model):
    """Modules, container, Python and variables under one name."""

    description: Text | None = None
    """A description for people who read the profile or a listing."""
    modules: Annotated[
        Modules | None, BeforeValidator(_modules_alone), Or(_TEXT, {"type": "array", "items": _TEXT})
    ] = None
    """Environment modules to load; a name or a list of names alone will do, as in `modules: cuda/12.4`."""
    container: Annotated[Container | None, alone("image"), Or(_TEXT)] = None
    """The container that the command runs in; its image alone will do, as in `container: torch.sif`."""
    python: PythonEnvironment = PythonEnvironment.model_construct()
    """The Python that runs the command. A container has its own: an environment is then activated on the host before it."""
    variables: dict[EnvName, JobText] = Field(default_factory=dict)
    """Variables to export, as in `variables: {NCCL_DEBUG: WARN}`; `$NAME` in a value expands when the job runs, and the
    job's own variables win."""
    sbatch: dict[Word, OptionValue] = Field(default_factory=dict)
    """sbatch options of the site's plug-ins that set it up, by their long names, as in `sbatch: {uenv: pytorch/v2.8.0}`;
    the job's own `sbatch` wins."""
    srun_options: tuple[Text, ...] = ()
    """Further options of every srun in it, one word each, as in `srun_options: [--environment=ngc-pytorch]`."""

    @model_validator(mode="after")
    def _has_one_python(self) -> Self:
        if self.container is not None and self.python.stage:
            raise Hinted(
                "python.stage: node and container are both given, and the command runs with the image's own Python",
                hint="leave stage out: an image is one file already",
            )
        return self

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
