"""Discovered profiles in the user's folder: written whole or not at all, and never over what a person wrote."""

from __future__ import annotations

from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.run_record import write_atomically

__all__ = ["last_discovered", "save", "write"]


def _memory(path: Path) -> Path:
    """Where the text of the last discovery is kept, to tell by it what a person has changed since."""
    return path.parent / ".discovered" / path.name


def last_discovered(path: Path) -> str | None:
    """What the last discovery wrote into a profile; None: it was not written by one."""
    try:
        return _memory(path).read_text(encoding="utf-8")
    except OSError:
        return None


def save(path: Path, text: str, discovered: str) -> None:
    """Write a profile and remember what of it was discovered; InvalidInput when it cannot be written."""
    try:
        _memory(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    write(path, text)
    write(_memory(path), discovered)


def write(path: Path, text: str) -> None:
    """Write a file by rename; InvalidInput when it cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
