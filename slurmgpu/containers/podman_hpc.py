"""Podman-HPC (https://github.com/NERSC/podman-hpc): podman, with the site's GPU libraries and a store of images for all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.containers._base import Runtime, host_and_inside
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]


class PodmanHpc(Runtime):
    """A new container for each process, which sees nothing of the host but what is mounted and passed."""

    fields = frozenset({"workdir"})

    def is_file(self, image: str) -> bool:
        return False

    def words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``podman-hpc run --rm --net=host --gpu -v FOLDER:FOLDER -w FOLDER -e NAME IMAGE``."""
        here = '"$PWD"'  # the script has entered the work folder, which the image does not have
        return [
            "podman-hpc run --rm --net=host --ipc=host",
            *(["--gpu"] if gpus and container.gpu != "none" else []),
            *(word for bind in (here, *binds) for word in ("-v", host_and_inside(bind))),
            *("-w", job_path(container.workdir) if container.workdir else here),
            *(word for name in variables for word in ("-e", shell_word(name))),
            *map(shell_word, container.options),
            job_path(container.image.removeprefix("docker://")),
        ]


RUNTIME = PodmanHpc()
