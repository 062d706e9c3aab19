"""The record of a submission in its run directory, ``run.json``: read, and written so that nobody sees half of one."""

from __future__ import annotations

import os
from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import open_regular, write_atomically
from slurmgpu.models.run import RUN_FILE, Run

_LARGEST = 16 << 20
"""Bytes: each job that a run has had takes some hundreds."""


def read_run(directory: Path) -> Run:
    """Read a run directory's record; raises InvalidInput when it is missing or damaged."""
    path = directory / RUN_FILE
    try:
        with open_regular(path) as file:  # it may lie in a folder of somebody else's
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST:,} bytes")
        run = Run.from_json(data.decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        why = (
            f"is not a run directory: there is no {RUN_FILE} in it" if directory.exists() else "is not there"
        )
        raise InvalidInput(f"{directory} {why}", hint="give a directory that slurmgpu submit made") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        first = str(error).split("\n")
        raise InvalidInput(f"{path} is not the record of a run: {' '.join(first[:3])}") from None
    _check_whose(directory, run)
    return run


def _check_whose(directory: Path, run: Run) -> None:
    """Raise InvalidInput where somebody else's folder has a record of a third one's: what is done to it would be done to that."""
    try:
        holder, meant = directory.stat().st_uid, Path(run.run_dir).stat().st_uid
    except OSError:
        return  # it has been moved since
    if holder not in {os.getuid(), meant}:
        raise InvalidInput(
            f"{directory / RUN_FILE}: it belongs to user {holder}, and is the record of {run.run_dir}, which does not",
            hint=f"name that one, if you mean it: {run.run_dir}",
        )


def write_run(path: Path, run: Run) -> None:
    """Write run.json so that a reader sees the old one or the new one, never half of one."""
    write_atomically(path / RUN_FILE, run.to_json())
