"""A profiler around a job's processes."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from slurmgpu.models.base import Hinted, Model, Words

__all__ = ["Profile"]


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
    """Further options of the profiler, one word each, as in `options: [--trace=cuda,nvtx, --delay=60]`."""

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
        return self

    @property
    def program(self) -> str:
        """What must be on PATH."""
        return self.with_ or self.command[0]
