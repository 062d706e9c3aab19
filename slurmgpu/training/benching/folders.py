"""Folders that are removed with what is in them, by the next bench where this one was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

__all__ = ["own_folder"]

_PREFIX = "slurmgpu-bench-"
_LOCK = "lock"


@contextlib.contextmanager
def own_folder(where: Optional[str] = None) -> Iterator[str]:
    """A new folder below ``where`` (None: that of temporary files), first of all without what killed benches have left there.

    OSError where none can be made.
    """
    _sweep(Path(where or tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=where) as folder,
        Path(folder, _LOCK).open("wb") as lock,
    ):
        # It goes with the process, however that ends; the number of a process means nothing in another container.
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder


def _sweep(where: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in where.glob(f"{_PREFIX}*"):
            if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                _remove_left(folder)


def _remove_left(folder: Path) -> None:
    with contextlib.suppress(OSError), Path(folder, _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
