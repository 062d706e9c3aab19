"""Where run directories may go: folders of this machine that are large, shared and the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.discovery.login_node import SCRATCH_FOLDERS, SCRATCH_VARIABLES

__all__ = ["Place", "can_be_made", "places_for_runs"]


@dataclass(frozen=True)
class Place:
    """A folder for run directories, as settings hold it, and why it is proposed."""

    text: str
    """With $NAME where a variable names it, so that it holds on another cluster, too."""
    why: str


def places_for_runs(environ: Mapping[str, str], user: str, *, root: Path = Path("/")) -> list[Place]:
    """Scratch and work folders that exist and can be written to, the likeliest first."""
    found: dict[str, Place] = {}
    for name in SCRATCH_VARIABLES:
        folder = environ.get(name, "")
        if folder.startswith("/") and _is_ours(root / folder.lstrip("/"), environ):
            found.setdefault(str(Path(folder)), Place(f"${name}/runs", f"${name} is {folder} here"))
    for pattern in SCRATCH_FOLDERS:
        folder = pattern.format(user)
        if _is_ours(root / folder.lstrip("/"), environ):
            found.setdefault(folder, Place(f"{pattern.format('$USER')}/runs", "it is there, and yours"))
    return list(found.values())


def _is_ours(folder: Path, environ: Mapping[str, str]) -> bool:
    # Some sites set $WORK to the home folder: that is what is to be avoided.
    home = environ.get("HOME")
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and str(folder) != home


def can_be_made(folder: Path) -> bool:
    """Whether the folder is there, or could be made, and can be written to."""
    for one in (folder, *folder.parents):
        if one.exists():
            return one.is_dir() and os.access(one, os.W_OK | os.X_OK)
    return False
