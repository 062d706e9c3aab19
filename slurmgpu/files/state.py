"""Where slurmgpu keeps what it has learnt or started: the user's own state (XDG Base Directory Specification)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["state_folder"]


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder slurmgpu in XDG_STATE_HOME, or in ~/.local/state where that is not set or, against the standard, relative."""
    state = environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return home / "slurmgpu"
