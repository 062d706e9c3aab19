"""Charliecloud (https://hpc.github.io/charliecloud/ch-run.html)."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.containers._base import Runtime
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]


class Charliecloud(Runtime):
    """An image is a folder, a SquashFS file, or a name in Charliecloud's storage; the environment is the host's."""

    fields = frozenset({"workdir", "writable"})
    formats = ("SquashFS",)

    def is_file(self, image: str) -> bool:
        return "/" in image and ":" not in image

    def words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``ch-run --bind=FOLDER:FOLDER --cd=FOLDER IMAGE --``."""
        return [
            "ch-run",
            *(f"--bind={bind}" for bind in ('"$PWD"', *binds)),
            *(["--write-fake"] if container.writable else []),
            f"--cd={job_path(container.workdir) if container.workdir else _HERE}",
            *map(shell_word, container.options),
            job_path(container.image),
            "--",
        ]


_HERE = '"$PWD"'

RUNTIME = Charliecloud()
