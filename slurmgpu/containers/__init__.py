"""Container runtimes, by which a command gets into an image: one module each, found by its name."""

from __future__ import annotations

from slurmgpu.containers._base import Runtime
from slurmgpu.models.base import RUNTIMES
from slurmgpu.models.environment import Environment

__all__ = ["Runtime", "enters_by_srun", "runtime"]


def runtime(name: str) -> Runtime:
    """Return the container runtime of that name; InvalidInput where a user's own module has none."""
    return RUNTIMES.instance(name, Runtime)


def enters_by_srun(environment: Environment) -> bool:
    """Return True if there is an image that only srun's options enter."""
    container = environment.container
    return container is not None and runtime(container.runtime).by_srun
