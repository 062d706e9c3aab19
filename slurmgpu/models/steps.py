"""Several commands that run side by side in one job, each on a share of it."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from slurmgpu.models.base import Checked, Hinted, Model
from slurmgpu.models.command import CommandSchema, check_words, to_words
from slurmgpu.models.environment import Or, alone
from slurmgpu.models.launch import LAUNCHER, Launch
from slurmgpu.models.resources import Positive
from slurmgpu.models.units import Memory

__all__ = ["Step", "StepName", "check_steps", "variable_of"]


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
    """The variable that holds the address of a step's first node."""
    return f"SLURMGPU_NODE_{name.upper().replace('-', '_')}"


class Step(Model):
    """A command that runs beside others in one job, as a step of Slurm's with a share of the job's nodes."""

    command: Annotated[tuple[str, ...], BeforeValidator(to_words), CommandSchema()]
    """What runs: words, as the job's own `command`."""
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
    """How its processes start, as the job's own `launch`: auto, plain, srun, torchrun, mpi or deepspeed."""
    background: bool = False
    """Whether the job ends without waiting for it, as for a server or a monitor: it is then told to end (TERM), and killed
    30 s later."""
    overlap: bool = False
    """Whether it shares the CPUs, GPUs and memory of the other steps instead of having a share of its own, as for a
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
