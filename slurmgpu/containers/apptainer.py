"""Apptainer (https://apptainer.org/docs/user/main/cli.html)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmgpu.containers._base import Runtime
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME", "Apptainer"]

# Intel's need no libraries of the host: /dev/dri is in every image's /dev.
_GPU = {"nvidia": ["--nv"], "amd": ["--rocm"], "intel": [], "none": []}
_ADDRESS = r"(docker|library|oras|shub|https?)://|(docker-archive|oci|oci-archive):"


class Apptainer(Runtime):
    """The program, and those that are called as it is."""

    program = "apptainer"
    prefix = "APPTAINERENV_"
    """Variables of this name get into an image whose environment is clean, without it."""
    fields = frozenset({"build", "overlay", "clean_env", "workdir", "writable"})
    formats = ("SIF", "SquashFS", "ext3")
    modes = frozenset({"exec", "run"})

    def is_file(self, image: str) -> bool:
        """Return True if it is no address."""
        return not re.match(rf"{_ADDRESS}|instance://", image)

    def making(self, container: Container, target: str) -> list[str] | None:
        """``apptainer pull FILE docker://NAME``, ``apptainer build FILE DEFINITION``."""
        if container.build:
            return [self.program, "build", target, container.build]
        return (
            [self.program, "pull", target, container.image] if re.match(_ADDRESS, container.image) else None
        )

    def words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``apptainer exec --nv --bind FOLDER IMAGE``."""
        return [
            *([_passing(variables, self.prefix)] if container.clean_env else []),
            self.program,
            container.mode,
            *(_GPU[container.gpu] if gpus else []),
            *(["--cleanenv"] if container.clean_env else []),
            *(["--writable-tmpfs"] if container.writable else []),
            *(["--overlay", job_path(container.overlay)] if container.overlay else []),
            *(word for bind in binds for word in ("--bind", bind)),
            *(["--pwd", job_path(container.workdir)] if container.workdir else []),
            *map(shell_word, container.options),
            job_path(container.image),
        ]


def _passing(variables: Sequence[str], prefix: str) -> str:
    """Return a shell that hands variables on to what follows it, each task its own."""
    names = "\\|".join(name.replace("*", "[^=]*") for name in variables)
    take = f'export -p | sed -n "s/^export \\(\\({names}\\)=\\)/export {prefix}\\1/p"'
    return f'sh -c \'eval "$({take})"; exec "$@"\' sh'


RUNTIME = Apptainer()
