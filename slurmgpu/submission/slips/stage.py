"""Data that is to be copied to the nodes, and is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurmgpu.submission.slips.command import Command, Slip, seen_from_here
from slurmgpu.submission.slips.nearby import is_there, near_file

__all__ = ["missing_data"]


def missing_data(command: Command, folder: Path) -> Iterator[Slip]:
    """What ``stage.in`` names and this machine does not have."""
    stage = command.plan.stage
    sees = (
        not command.blind or command.plan.environment.container is not None
    )  # a container changes nothing here
    for one in stage.in_ if stage else ():
        path = folder / one.from_
        if re.search(r"[$~]", one.from_) or is_there(path):
            continue
        near = near_file(path) or near_file(path, folders=True)
        guess = f"did you mean {str(PurePosixPath(one.from_).parent / near)!r}? " if near else ""
        yield Slip(
            f"stage.in: {one.from_!r} is not there (looked for {path})",
            f"{guess}give a file or folder, against the work folder",
            sees and seen_from_here(path, folder),
        )
