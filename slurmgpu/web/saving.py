"""A job file that a page writes: in the folder of the server and under a plain name, never over something else."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.run_record import write_atomically
from slurmgpu.files.settings import PROJECT_FILE

__all__ = ["free_name", "save_job", "take_back"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.ya?ml", re.ASCII)


def free_name(folder: Path, like: str = "job.yaml") -> str:
    """A name for a new job file that nothing in the folder has: ``job.yaml``, ``job-2.yaml``."""
    stem, ending = Path(like).stem, Path(like).suffix
    stem = re.sub(r"-\d\d?$", "", stem)
    names = (like, *(f"{stem}-{number}{ending}" for number in range(2, 100)))
    return next((name for name in names if not os.path.lexists(folder / name)), names[0])


def save_job(folder: Path, name: str, text: str, *, write: bool = True) -> Path:
    """The file of a job, written unless the same is there already; InvalidInput where it may not be written.

    Without ``write`` only what would be in the way is said.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"file: {name!r} is not a name for a job file",
            hint="write letters, digits, . _ and -, without a folder, ending in .yaml, such as job.yaml",
        )
    if name == PROJECT_FILE:
        raise InvalidInput(
            f"file: {name!r} is not a name for a job file: the project's settings have it",
            hint="give the job file another name, such as job.yaml",
        )
    path = folder / name
    try:
        there = path.read_text(encoding="utf-8") if path.exists() or path.is_symlink() else None
        if there is not None and there != text:
            raise InvalidInput(
                f"file: {path} is there, and has other lines",
                hint=f"give the job file another name, such as {free_name(folder, name)}",
            )
        if write and there is None:
            write_atomically(path, text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidInput(
            f"file: {path} cannot be written: {why}", hint="give the job file another name"
        ) from None
    return path


def take_back(path: Path, text: str) -> None:
    """Remove a job file that no job came of, unless somebody has changed it: it would be in the way of the next try."""
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            path.unlink()
