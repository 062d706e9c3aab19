"""How a command gets into an image: each container runtime is one module, found by its name."""

from __future__ import annotations

from slurmgpu.containers._base import Runtime
from slurmgpu.models.kinds import RUNTIMES

__all__ = ["Runtime", "runtime"]


def runtime(name: str) -> Runtime:
    """The container runtime of that name; InvalidInput where a user's own module has none."""
    return RUNTIMES.instance(name, Runtime)
