"""What can go wrong with a sandbox."""

from __future__ import annotations

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable

__all__ = ["ProgramsMissing", "SandboxFailed"]


class SandboxFailed(SlurmGpuError):
    """A sandbox that did not start, is not there, or cannot do what was asked (exit code 1)."""


class ProgramsMissing(SlurmUnreachable):
    """Slurm's or munge's programs are not installed on this machine (exit code 4)."""
