"""A profiler around a job's processes."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from slurmgpu.models.base import Hinted, Model, Words

__all__ = ["Profile"]

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
        """What must be on PATH."""
        return self.with_ or self.command[0]
