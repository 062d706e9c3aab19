"""Pyxis (https://github.com/NVIDIA/pyxis): options of srun, by which enroot runs the image."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmgpu.containers._base import Runtime, host_and_inside
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]


class Pyxis(Runtime):
    """Of the host's folders only those that are mounted are there, so the work folder is; GPUs come by enroot's hooks."""

    fields = frozenset({"workdir", "writable", "name"})
    by_srun = True
    formats = ("SquashFS",)

    def is_file(self, image: str) -> bool:
        return image.startswith(("/", "./", "../", "~/", "$")) or image.endswith(".sqsh")

    def srun_words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``--container-image=IMAGE --container-mounts=FOLDER:FOLDER --container-workdir=FOLDER``."""
        mounts = ",".join(host_and_inside(bind) for bind in ('"$PWD"', *binds))
        return [
            f"--container-image={job_path(_reference(container.image))}",
            f"--container-mounts={mounts}",
            f"--container-workdir={job_path(container.workdir) if container.workdir else _HERE}",
            *([f"--container-name={shell_word(container.name)}"] if container.name else []),
            *(["--container-writable"] if container.writable else []),
            *map(shell_word, container.options),
        ]


_HERE = '"$PWD"'  # the script has entered the work folder


def _reference(image: str) -> str:
    """enroot's spelling: a # between a registry and what it has; docker.io needs none."""
    name = image.removeprefix("docker://")
    registry, slash, rest = name.partition("/")
    if image.startswith(("/", "./", "../", "~/", "$")) or "#" in name or not slash:
        return name
    return f"{registry}#{rest}" if re.search(r"[.:]|\Alocalhost\Z", registry) else name


RUNTIME = Pyxis()
