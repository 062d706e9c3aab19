"""Files that are there whole or not at all: written under another name, synced, renamed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Optional, TypedDict, TypeVar

__all__ = [
    "TEMPORARY",
    "Facts",
    "free_name",
    "is_there",
    "patiently",
    "read_json",
    "sync_folder",
    "write_json",
    "write_whole",
]

T = TypeVar("T")

TEMPORARY = ".tmp"
# Seconds before each further look: a file server may be away, or its client behind.
_PATIENCE = (1.0, 5.0, 10.0)


class Facts(TypedDict):
    """A file's size in bytes and its SHA-256, in hex, as a manifest holds them."""

    bytes: int
    sha256: str


class Digest:
    """A file that knows the SHA-256 of what was written to it, so that no part is read again to learn it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._size = 0
        self.error: Optional[OSError] = None
        """Why the last write failed; of a full disk torch.save itself only says "unexpected pos"."""

    def write(self, data: bytes) -> int:
        """Write all of the data, and count it."""
        self._sha256.update(data)
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._size += written
        return written

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._file.flush()

    def facts(self) -> Facts:
        """Return what a manifest says of the file."""
        return {"bytes": self._size, "sha256": self._sha256.hexdigest()}


def write_whole(path: Path, fill: Callable[[Digest], object]) -> Facts:
    """Write a file by ``fill`` under a temporary name, sync and rename it; return its size and SHA-256.

    The folder is not synced: one sync serves several files. After an error the temporary file is gone.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    digest: Optional[Digest] = None
    try:
        with temporary.open("wb") as file:
            digest = Digest(file)
            fill(digest)
            _sync(file)
        _rename(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if digest is not None and digest.error not in (None, error):
            raise digest.error from error
        raise
    return digest.facts()


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write one line of JSON, whole, and sync the folder."""
    line = json.dumps(document, ensure_ascii=False).encode() + b"\n"
    write_whole(path, lambda file: file.write(line))
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty where there is none, or it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def free_name(path: Path) -> Path:
    """Return the path with a number behind it, the first for which nothing is there."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(1))
    return next(each for each in numbered if not each.exists())


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _rename(temporary: Path, path: Path) -> None:
    temporary.replace(path)


def sync_folder(path: Path) -> None:
    """Make renames in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_there(path: Path) -> bool:
    """Return True if a path exists; raises a file server's error, where ``Path.exists`` says no (Python 3.14 and newer)."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def patiently(act: Callable[[], T]) -> T:
    """Return the result of ``act``, tried again after a system error that may pass."""
    for seconds in _PATIENCE:
        try:
            return act()
        except PermissionError:
            raise
        except OSError:
            time.sleep(seconds)
    return act()
