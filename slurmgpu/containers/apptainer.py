"""Apptainer (https://apptainer.org/docs/user/main/cli.html)."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.containers._base import Runtime
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME", "Apptainer"]

_GPU = {"nvidia": ["--nv"], "amd": ["--rocm"], "none": []}


class Apptainer(Runtime):
    """The program, and those that are called as it is."""

    program = "apptainer"

    def words(self, container: Container, *, gpus: bool, binds: Sequence[str]) -> list[str]:
        """``apptainer exec --nv --bind FOLDER IMAGE``."""
        return [
            self.program,
            container.mode,
            *(_GPU[container.gpu] if gpus else []),
            *(word for bind in binds for word in ("--bind", bind)),
            *map(shell_word, container.options),
            job_path(container.image),
        ]


RUNTIME = Apptainer()
