"""uenv of CSCS (https://docs.cscs.ch/software/uenv/): srun's ``--uenv`` mounts an image of software, and a view sets it up."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.containers._base import Runtime
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]


class Uenv(Runtime):
    """All of the host stays in sight."""

    fields = frozenset({"view"})
    by_srun = True
    formats = ("SquashFS",)

    def is_file(self, image: str) -> bool:
        return image.endswith(".squashfs")

    def srun_words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``--uenv=NAME --view=VIEW``."""
        return [
            f"--uenv={job_path(container.image)}",
            *([f"--view={shell_word(container.view)}"] if container.view else []),
            *map(shell_word, container.options),
        ]


RUNTIME = Uenv()
