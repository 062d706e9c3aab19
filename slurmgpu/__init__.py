"""slurmgpu: from a job file to a finished, resumable multi-GPU training on any Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmgpu.api import submit as submit

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded when it is used, so that the command line starts without it.
    if name == "submit":
        import importlib

        return importlib.import_module("slurmgpu.api").submit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
