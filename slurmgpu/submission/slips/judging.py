"""Everything that is wrong with a command, the surest first."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurmgpu.submission.slips.command import Command, Slip, seen_from_here
from slurmgpu.submission.slips.nearby import near_file
from slurmgpu.submission.slips.program import program_slips
from slurmgpu.submission.slips.script import script_slips
from slurmgpu.submission.slips.words import shell_word_slip

__all__ = ["missing_folder", "slips"]


def missing_folder(folder: Path) -> Slip | None:
    """A work folder that is not there: Slurm then runs the job in /tmp (seen on 22.05)."""
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir() raises for a name too long for the disk
        return None
    if os.path.exists(folder):  # noqa: PTH110
        return Slip(
            f"work_dir: {str(folder)!r} is a file, where a folder is expected",
            f"give its folder: -D {shlex.quote(str(folder.parent))}",
            forceable=False,
        )
    near = near_file(folder, folders=True)
    guess = f"did you mean {str(folder.parent / near)!r}? make the folder" if near else "make the folder"
    return Slip(
        f"work_dir: {str(folder)!r} is not there: Slurm would run the job in /tmp instead",
        f"{guess}, or give another by -D/--chdir or work_dir",
        forceable=False,
    )


def slips(command: Command) -> list[Slip]:
    """What is wrong with a command, the surest first; at most one for the program, its script and its words each."""
    folder = command.folder
    if folder is not None:
        missing = missing_folder(folder)
        if missing is not None:
            return [missing._replace(sure=not command.blind)]
    if not command.words:
        return []
    found = [*program_slips(command), *([] if folder is None else script_slips(command, folder))]
    shell = shell_word_slip(command.words, command.plan, command.in_file)
    if shell is not None:
        found.append(Slip(*shell))
    if folder is not None and not found:
        found += _environment(command, folder)
    return sorted(found, key=lambda slip: not slip.sure)


def _environment(command: Command, folder: Path) -> Iterator[Slip]:
    """A virtual environment that is not where the job looks for it."""
    venv = command.plan.environment.python.venv
    if venv is None or re.search(r"[$~]", venv.path):
        return
    path = folder / venv.path
    if os.path.exists(path / "bin" / "activate"):  # noqa: PTH110
        return
    near = near_file(path, folders=True)
    guess = f"did you mean {str(PurePosixPath(venv.path).parent / near)!r}? " if near else ""
    yield Slip(
        f"environment.python.venv.path: {venv.path!r} is no virtual environment: {path}/bin/activate is not there",
        f"{guess}give the folder that `python -m venv` made, against the work folder",
        not command.blind and seen_from_here(path, folder),
    )
