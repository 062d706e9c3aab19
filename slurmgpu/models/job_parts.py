"""Parts of a job beside its resources: side-by-side steps, staged data, profiler, notification, sampling."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated, Literal, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    SkipValidation,
    Strict,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from slurmgpu.models.base import Checked, EnvName, Hinted, JobPath, Model, Text, Words
from slurmgpu.models.command import LAUNCHER, CommandSchema, Launch, check_words, to_words
from slurmgpu.models.environment import Or, alone
from slurmgpu.models.resources import Positive
from slurmgpu.models.units import Memory

__all__ = [
    "DEFAULT_SECONDS",
    "Notify",
    "Profile",
    "Sample",
    "SamplerPolicy",
    "Stage",
    "StageIn",
    "StageOut",
    "Step",
    "StepName",
    "WhenSampled",
    "check_steps",
    "variable_of",
]


def _step_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", value) or value in {"batch", "extern", "interactive"}:
        raise Hinted(
            f"{value!r} is not a step's name",
            hint="use up to 40 letters, digits, - and _, beginning with a letter; batch, extern and interactive are Slurm's",
        )
    return value


StepName = Annotated[str, Checked(_step_name)]
"""The name of a step: part of a file's name and of a variable's."""


def variable_of(name: str) -> str:
    """Return the variable that holds the address of a step's first node."""
    return f"SLURMGPU_NODE_{name.upper().replace('-', '_')}"


class Step(Model):
    """A command that runs beside others in one job, as a step of Slurm's with a share of the job's nodes."""

    command: Annotated[tuple[str, ...], BeforeValidator(to_words), CommandSchema()]
    """Command to run: words, as the job's own `command`."""
    component: Annotated[int, Field(ge=0)] = 0
    """The component of a heterogeneous job in which it runs: 0 is the job itself, 1 the first of `components`."""
    nodes: Positive | None = None
    """Number of its nodes; left out, 1, or all of its component where no other step has a share of it."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs in all, in equal shares on its nodes; left out, none, or all of its component where no other step has a share
    of it."""
    tasks_per_node: Positive | None = None
    """Tasks on each of its nodes, started by srun; left out, the launcher's."""
    cpus_per_task: Positive | None = None
    """CPUs of each task; left out, those that come with its GPUs, or 1 without GPUs."""
    memory: Memory | None = None
    """Memory on each of its nodes; left out, it shares the job's memory with the other steps."""
    launch: Annotated[Launch, alone("launcher"), Or(LAUNCHER)] = Launch.model_construct()
    """Launcher, as the job's own `launch`: auto, plain, srun, torchrun, mpi or deepspeed."""
    background: bool = False
    """End the job without waiting for it, as for a server or a monitor: it is then sent TERM, and killed
    30 s later."""
    overlap: bool = False
    """Share the CPUs, GPUs and memory of the other steps instead of taking some of its own, as for a
    monitor; it then runs once on each node of its component."""

    @field_validator("command")
    @classmethod
    def _command_words(cls, words: tuple[str, ...], _: ValidationInfo) -> tuple[str, ...]:
        return check_words(words)

    @model_validator(mode="after")
    def _shares_all_or_has_its_own(self) -> Self:
        for field in ("gpus", "memory") if self.overlap else ():
            if getattr(self, field) is not None:
                raise ValueError(
                    f"{field}: {getattr(self, field)} and overlap: true exclude each other: such a step shares what the "
                    f"others have; leave {field} out"
                )
        return self


def check_steps(steps: dict[str, Step], components: int) -> None:
    """ValueError for steps that could not run in a job of so many components, the job itself counted."""
    variables: dict[str, str] = {}
    for name, step in steps.items():
        other = variables.setdefault(variable_of(name), name)
        if other != name:
            raise Hinted(
                f"steps {other} and {name} would both have the variable {variable_of(name)}",
                hint="rename one",
            )
        if step.component >= components:
            there = f"0 to {components - 1}" if components > 1 else "0 alone"
            raise Hinted(
                f"steps.{name}.component: {step.component} is not there: the job has {there}",
                hint="write one of those, or add a component under components:",
            )
    if steps and all(step.background for step in steps.values()):
        raise Hinted(
            f"steps: {', '.join(steps)}: all are in the background, so the job would end at once",
            hint="leave background out of one that the job is to wait for",
        )


_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_TEXT: dict[str, object] = {"type": "string"}


class StageIn(Model):
    """A file or folder that is copied to each node's own disk."""

    from_: Annotated[JobPath, Field(alias="from")]
    """The file or folder."""
    unpack: bool = False
    """Unpack it: an archive (.tar, .tar.gz, .tar.zst, ...) whose content is wanted there, and not the file."""

    @model_validator(mode="after")
    def _is_an_archive(self) -> Self:
        if self.unpack and not self.from_.endswith(_ARCHIVES):
            raise Hinted(
                f"{self.from_!r} is no archive that can be unpacked; there are {', '.join(_ARCHIVES)}",
                hint="leave unpack out to have the file or folder copied as it is",
            )
        return self


class StageOut(Model):
    """A file or folder that the command makes on its node's own disk."""

    from_: Annotated[Text, Field(alias="from")]
    """Its name in the folder that `$SLURMGPU_STAGE` names."""
    to: JobPath = "."
    """The folder that it is put into, under its own name; left out, the work folder."""

    @field_validator("from_")
    @classmethod
    def _below_the_folder(cls, name: str) -> str:
        if name.startswith(("/", "~", "$")) or posixpath.normpath(name).split("/")[0] in ("..", "."):
            raise Hinted(
                f"{name!r} is no name below the folder that $SLURMGPU_STAGE names",
                hint="write what the command makes there, as in out: [{from: results, to: $SCRATCH/results}]",
            )
        return posixpath.normpath(name)


class Stage(Model):
    """Files to copy to each node's own disk, into the folder `$SLURMGPU_STAGE`, and files to bring back."""

    in_: Annotated[
        tuple[Annotated[StageIn, alone("from"), Or(_TEXT)], ...], Strict(False), Field(alias="in")
    ] = ()
    """Files and folders to copy before the command starts; a path alone is enough, as in `in: [$SCRATCH/data]`."""
    out: Annotated[tuple[Annotated[StageOut, alone("from"), Or(_TEXT)], ...], Strict(False)] = ()
    """Files to bring back when it has ended, failed or been stopped; a name alone goes into the work folder."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        into = [(posixpath.basename(one.from_.rstrip("/")), "") for one in self.in_ if not one.unpack]
        back = [(posixpath.basename(one.from_), posixpath.normpath(one.to)) for one in self.out]
        for field, names in (("in", into), ("out", back)):
            # What a variable or a dot stands for shows only on the node.
            twice = next((one for one in names if names.count(one) > 1 and one[0].strip(".")), None)
            if twice is not None and "$" not in twice[0]:
                where = f"the folder {twice[1]!r}" if twice[1] else "the folder that $SLURMGPU_STAGE names"
                raise Hinted(
                    f"{field}: two of them would have the name {twice[0]!r} in {where}",
                    hint="rename one of them, or stage the folder above both"
                    if field == "in"
                    else "give them different names, or each a folder of its own under to",
                )
        return self


# Options by which a profiler is told where its report goes.
_WHERE = {"nsys": ("-o", "--output"), "rocprofv3": ("-o", "--output-file", "-d", "--output-directory")}


class Profile(Model):
    """A profiler around what srun starts; in a file the profiler's name alone will do, as in `profile: nsys`."""

    with_: Annotated[Literal["nsys", "rocprofv3"] | None, Field(alias="with")] = None
    """The profiler: nsys (NVIDIA) or rocprofv3 (AMD), as it is found on PATH when the job runs."""
    command: Words = ()
    """Instead of one of these: any program that runs a command, as words, such as `[py-spy, record, -o, "{report}.svg", --]`;
    `{report}` becomes the path of this task's report, without an ending."""
    ranks: Literal["one", "all"] = "one"
    """one: the first task alone, and all others run as they would; all: each task, with a report of its own. A task is a
    rank with the launchers srun, mpi and mpirun, and a node with all its ranks with torchrun, accelerate and deepspeed."""
    options: Words = ()
    """Further options of the profiler, one word each; quote those that contain a comma, such as "--trace=cuda,nvtx"."""

    @model_validator(mode="after")
    def _one_profiler(self) -> Self:
        if self.with_ is None and not self.command:
            raise Hinted(
                "names no profiler",
                hint="write profile: {with: nsys}, with: rocprofv3, or command: [PROGRAM, ...]",
            )
        if self.with_ is not None and self.command:
            raise Hinted(
                f"with: {self.with_} and command: {' '.join(self.command)} are both given",
                hint="leave one of the two out; further options of the profiler go into options",
            )
        if self.with_ is not None:
            self._options_fit(self.with_)
        return self

    def _options_fit(self, name: str) -> None:
        for before, word in zip(("", *self.options), self.options, strict=False):
            if name == "nsys" and word[:1] != "-" and (before[:1] != "-" or "=" in before):
                raise Hinted(
                    f"options: {word!r} would be taken for the command by nsys",
                    hint=f'quote an option that has a comma in it: ["{before or "--trace=cuda"},{word}"]',
                )
            if word.partition("=")[0] in _WHERE[name]:
                raise Hinted(
                    f"options: {word!r} and the report's own name exclude each other",
                    hint="leave it out: reports are in profiles/ of the run directory, named by job, restart and rank",
                )

    @property
    def program(self) -> str:
        """Return the program that must be on PATH."""
        return self.with_ or self.command[0]


class Notify(Model):
    """A message that the script sends to a webhook at its end."""

    webhook: EnvName
    """The name of the secret that holds the webhook's address: a variable of the shell that submits, or on the node the file
    ~/.config/slurmgpu/secrets/NAME; never the address itself."""
    on: Annotated[tuple[Literal["completed", "failed", "stopped", "requeued"], ...], Strict(False)] = (
        "completed",
        "failed",
        "stopped",
    )
    """The ends to write about: completed (exit code 0), failed, stopped (in good order, before it was done, and not started
    again by itself) and requeued."""
    form: Literal["slack", "discord", "teams", "ntfy", "json"] | None = None
    """Format that the receiver understands; default: as the address's host suggests, else json."""

    @field_validator("on")
    @classmethod
    def _some(cls, ends: tuple[str, ...]) -> tuple[str, ...]:
        if not ends:
            raise Hinted("names no end of a job", hint="write on: [failed], or leave notify out")
        return ends


DEFAULT_SECONDS = 15
"""Between samples, where nobody says."""
_LONGEST = 3600

WhenSampled = Literal["default", "on_request", "never"]
"""Jobs that a site allows to be sampled."""


class SamplerPolicy(NamedTuple):
    """The site's rules for the sampler."""

    when: WhenSampled = "default"
    least: int = 1
    """The fewest seconds between samples."""


def _check(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and 1 <= value <= _LONGEST:
        return value
    raise Hinted(
        f"{value!r} is neither true, false nor a number of seconds from 1 to {_LONGEST}",
        hint=f"write sample: true for a sample every {DEFAULT_SECONDS} s, or sample: 30 for one every 30 s",
    )


_SCHEMA = {
    "anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": _LONGEST}, {"type": "null"}]
}
Sample = Annotated[bool | int | None, SkipValidation, Checked(_check), WithJsonSchema(_SCHEMA)]
"""Yes, no, or the seconds between samples; None: not said."""
