"""What is made once for all submissions, and is there whole or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone", "made_once"]

Told = Callable[[str], None]


def made_once(file: Path, make: Callable[[Path], bool], told: Told, what: str) -> bool:
    """Whether the file is there in the end: made beside it, then renamed; who comes second waits, and finds it.

    ``make`` writes the file whose path it is given, and says whether that worked; ``what`` is made, in words. Raises
    OSError where the folder cannot be written.
    """
    # Another machine or, where locks do not work, another process may be at it too: each has its own.
    partial = file.with_name(f".{file.name}.{socket.gethostname()}-{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone(file.with_name(f".{file.name}.lock"), told, what):
        if file.exists():
            return True
        _sweep(partial)
        try:
            done = make(partial)
            if done:
                partial.replace(file)
            return done
        finally:
            partial.unlink(missing_ok=True)


def _sweep(partial: Path) -> None:
    """Remove what processes of this machine were at when they were killed."""
    stem = partial.name.rpartition("-")[0]
    for old in partial.parent.glob(f"{glob.escape(stem)}-*"):
        number = old.name.rpartition("-")[2]
        if number.isdecimal() and not Path("/proc", number).exists():
            old.unlink(missing_ok=True)


@contextmanager
def alone(lock: Path, told: Told, what: str) -> Iterator[None]:
    """Hold a lock file, which is gone afterwards; on a file system without locks, go on without."""
    waits = False
    while True:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    told(f"another submission is {what}; waiting for it")
                waits = True
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # ENOLCK, ENOSYS: some NFS and Lustre mounts
            if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue  # who had it has taken the file away
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
