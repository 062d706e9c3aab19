"""Slurm's own ``--container`` (https://slurm.schedmd.com/containers.html): an OCI bundle, by the site's OCI runtime."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.containers._base import Runtime
from slurmgpu.models.environment import Container
from slurmgpu.quoting import job_path, shell_word

__all__ = ["RUNTIME"]


class OciBundle(Runtime):
    """A runtime whose mounts are listed in the bundle's config.json."""

    by_srun = True

    def srun_words(
        self, container: Container, *, gpus: bool, binds: Sequence[str], variables: Sequence[str]
    ) -> list[str]:
        """``--container=BUNDLE``."""
        return [f"--container={job_path(container.image)}", *map(shell_word, container.options)]


RUNTIME = OciBundle()
