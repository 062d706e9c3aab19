"""The Container Engine of CSCS (https://docs.cscs.ch/software/container-engine/): srun's ``--environment``, by an EDF."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.containers._base import Runtime
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]


class Edf(Runtime):
    """The image is an environment definition file, or the name of one in EDF_PATH; what is mounted stands in it."""

    by_srun = True

    def is_file(self, image: str) -> bool:
        return image.endswith(".toml")

    def srun_words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``--environment=EDF``."""
        # A relative path must begin with a dot (container-engine/run): otherwise it is taken for a name.
        relative = self.is_file(container.image) and container.image[0] not in "./~$"
        image = f"./{container.image}" if relative else container.image
        return [f"--environment={job_path(image)}", *map(shell_word, container.options)]


RUNTIME = Edf()
