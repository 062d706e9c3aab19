"""The questions of planning and rendering to a container runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmgpu.errors import PlanError
from slurmgpu.models.base import RUNTIMES
from slurmgpu.models.environment import Container

__all__ = ["Runtime", "host_and_inside"]

_OPTIONAL = ("build", "overlay", "clean_env", "workdir", "writable", "name", "view")
"""The fields that not every runtime knows."""


class Runtime:
    """A way to run a command in an image: a program that comes before the command, or options of srun.

    A module of this folder, or of a user's ``extensions``, holds one instance as ``RUNTIME``; the module's name is
    what a job writes as ``container.runtime``.
    """

    fields: frozenset[str] = frozenset()
    """Fields that it knows, of those that not every runtime does."""
    by_srun = False
    """True if srun's options alone enter the image: what the batch shell would start is then a step of its own."""
    formats: tuple[str, ...] = ()
    """Formats of an image's file: SIF, SquashFS, ext3 (`image_format`); empty: nothing is known of it."""
    modes: frozenset[str] = frozenset({"exec"})
    """True if the command runs in the image (exec), or its runscript can get the command's words (run)."""

    def check(self, name: str, container: Container) -> None:
        """PlanError where it cannot do what the container asks for; ``name`` is its own."""
        for field in _OPTIONAL:
            if getattr(container, field) and field not in self.fields:
                knows = [one for one in RUNTIMES.names() if field in RUNTIMES.instance(one, Runtime).fields]
                raise PlanError(
                    f"environment.container.{field}: the runtime {name} does not know it; those that do: {', '.join(knows)}",
                    hint=f"leave {field} out, or write an option of {name} under options:",
                )
        if container.mode not in self.modes:
            raise PlanError(
                f"environment.container.mode: {container.mode}: the runtime {name} runs whole commands in an image",
                hint="use mode: exec, and write the whole command",
            )

    def is_file(self, image: str) -> bool:
        """Return True if the image is a file or folder, which can be looked for before submission."""
        return not re.match(r"[a-z0-9]+://", image)

    def making(self, container: Container, target: str) -> list[str] | None:
        """Return the command that makes an image's file before the job, of its address or ``build``; None: the job finds it."""
        return None

    def words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """Return what comes before the command, as words of the shell; none where srun enters the image.

        ``gpus``: whether the job has any. ``binds``: the folders to see inside, quoted, HOST or HOST:INSIDE[:ro].
        ``variables``: what of the environment must get in, by name, or by the beginning of a name and ``*``.
        """
        return []

    def srun_words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """Options of srun for its tasks to be in the image, as words of the shell."""
        return []


def host_and_inside(bind: str) -> str:
    """Return a bind as HOST:INSIDE[:ro], for runtimes that want both."""
    return bind if ":" in bind else f"{bind}:{bind}"
