"""The folder in which budget and calls are kept, for this user alone."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slurmgpu.errors import RunFailed
from slurmgpu.files.state import state_folder

__all__ = ["alone", "append", "own_folder"]

# A holder needs milliseconds; who holds a lock longer hangs on its disk.
_PATIENCE = 20.0


def own_folder(environ: Mapping[str, str]) -> Path:
    """The folder slurmgpu/mcp in XDG_STATE_HOME, or in ~/.local/state; made (mode 0700) where it is missing.

    RunFailed where it cannot be made, or is somebody else's.
    """
    folder = state_folder(environ) / "mcp"
    hint = "set XDG_STATE_HOME to a folder of your own"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        there = folder.lstat()
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid() or _can_be_moved(folder):
            raise RunFailed(
                f"{folder}: budget and calls of assistants are kept there, and it is not your own folder",
                hint=hint,
            )
        if there.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise RunFailed(
            f"{folder}: budget and calls of assistants are kept there, and it cannot be made: {error.strerror}",
            hint=hint,
        ) from None
    return folder


def _can_be_moved(folder: Path) -> bool:
    """Return whether somebody else may rename a folder, or the one around it, and put another in its place."""
    for above in folder.resolve().parents[:2]:  # slurmgpu's, and that of all states
        there = above.stat()
        open_to_all = there.st_mode & 0o022 and not there.st_mode & stat.S_ISVTX
        if there.st_uid not in (0, os.geteuid()) or open_to_all:
            return True
    return False


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock among all processes that use the folder; RunFailed where it cannot be had: nothing goes on without."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _not_locked(lock, error.strerror or str(error)) from None
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise _not_locked(lock, f"another process has held it for {_PATIENCE:g} s") from None
                time.sleep(0.01)
            except OSError as error:  # ENOLCK, ENOSYS: some NFS and Lustre mounts
                raise _not_locked(lock, error.strerror or str(error)) from None
        yield
    finally:
        os.close(descriptor)


def _not_locked(lock: Path, why: str) -> RunFailed:
    return RunFailed(
        f"{lock} cannot be locked: {why}",
        hint="without the lock nobody counts what is spent; set XDG_STATE_HOME to a folder on a disk that has locks",
    )


def append(path: Path, text: str) -> None:
    """Add a text to a file that only this user may read; OSError where that fails."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        data = text.encode("utf-8", errors="backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)
