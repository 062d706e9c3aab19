"""What rendering asks of a container runtime."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.models.environment import Container

__all__ = ["Runtime"]


class Runtime:
    """A program that runs a command in an image.

    A module of this folder, or of a user's ``extensions``, holds one instance as ``RUNTIME``; the module's name is
    what a job writes as ``container.runtime``.
    """

    def words(self, container: Container, *, gpus: bool, binds: Sequence[str]) -> list[str]:
        """What comes before the command, as words of the shell.

        ``gpus``: whether the job has any. ``binds``: the folders to see inside, quoted, HOST or HOST:INSIDE[:ro].
        """
        raise NotImplementedError
