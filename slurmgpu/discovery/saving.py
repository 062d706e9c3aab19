"""Discovered profiles in the user's folder: written whole or not at all, and never over what a person wrote."""

from __future__ import annotations

import os
from pathlib import Path

from slurmgpu.errors import InvalidInput

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
        _write(path, text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
