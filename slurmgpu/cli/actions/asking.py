"""The Slurm that commands ask which only look: what they are told is shared with the user's other processes."""

from __future__ import annotations

import os
from pathlib import Path

from slurmgpu.files.settings import Settings, load_settings
from slurmgpu.slurm import Slurm, shelf_here

# An answer that another process has asked for is as good as one's own for so many seconds.
_YOUNG = 5.0


def shared(settings: Settings | None = None) -> Slurm:
    """A Slurm whose answers may be some seconds old: as many as settings and site allow.

    Not for what decides something: who submits, cancels or resumes asks anew.
    """
    settings = load_settings(Path.cwd(), os.environ).settings if settings is None else settings
    return Slurm(shelf=shelf_here(max(settings.poll_floor, settings.policy.poll_floor or 0)))


def ago(age: float) -> str:
    """`` (12 s ago)``: how old the oldest answer is, where that is worth a word."""
    return f" ({age:.0f} s ago)" if age > _YOUNG else ""
