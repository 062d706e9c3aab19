"""slurmgpu: from a job file to a finished, resumable multi-GPU training on any Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmgpu.api import submit as submit
    from slurmgpu.version import __version__ as __version__


def __getattr__(name: str) -> object:
    # Loaded when it is used, so that the command line starts without it.
    import importlib

    if name in ("submit", "__version__"):
        return getattr(
            importlib.import_module("slurmgpu.api" if name == "submit" else "slurmgpu.version"), name
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
