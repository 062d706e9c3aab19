"""How a command gets into an image: each container runtime is one module, found by its name."""

from __future__ import annotations

from slurmgpu.containers._base import Runtime
from slurmgpu.errors import InvalidInput
from slurmgpu.models.kinds import RUNTIMES

__all__ = ["Runtime", "runtime"]


def runtime(name: str) -> Runtime:
    """The container runtime of that name; InvalidInput where a user's own module has none."""
    module = RUNTIMES.load(name)
    found = getattr(module, "RUNTIME", None)
    if not isinstance(found, Runtime):
        raise InvalidInput(
            f"{module.__file__}: RUNTIME is {found!r}, which is not a slurmgpu.containers.Runtime",
            hint="define a subclass of Runtime, and RUNTIME = ThatClass()",
        )
    return found
