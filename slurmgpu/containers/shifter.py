"""Shifter (https://docs.nersc.gov/development/containers/shifter/how-to-use/)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmgpu.containers._base import Runtime, host_and_inside
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]

_TYPED = r"(docker|id|custom|local):"


class Shifter(Runtime):
    """The environment and the work folder are the host's; images are those that ``shifterimg pull`` has brought."""

    fields = frozenset({"workdir"})

    def is_file(self, image: str) -> bool:
        return False

    def words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``shifter --image=docker:NAME --module=gpu --volume=FOLDER:FOLDER``."""
        image = container.image.removeprefix("docker://")
        return [
            "shifter",
            f"--image={job_path(image if re.match(_TYPED, image) else f'docker:{image}')}",
            *(["--module=gpu"] if gpus and container.gpu != "none" else []),
            *(f"--volume={host_and_inside(bind)}" for bind in binds),
            *([f"--workdir={job_path(container.workdir)}"] if container.workdir else []),
            *map(shell_word, container.options),
        ]


RUNTIME = Shifter()
