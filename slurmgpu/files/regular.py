"""Files in folders of others, or that others may have put there: opened so that nothing waits for them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_regular", "read_regular", "refuse_way_out", "staying_below", "text_of"]

LARGEST = 16 << 20
"""Bytes: no script and no configuration has as many, and a file of others may have no end."""

_below: ContextVar[Path | None] = ContextVar("below", default=None)


@contextmanager
def staying_below(folder: Path) -> Iterator[None]:
    """Within it, no file named below a folder is read if it lies elsewhere or is hidden, whatever links lead there.

    It is judged when it is open, so nobody can put a link in its place between a look and the reading.
    """
    token = _below.set(folder.resolve())
    try:
        yield
    finally:
        _below.reset(token)


def refuse_way_out(path: Path, descriptor: int) -> None:
    """Raise PermissionError for an open file that `staying_below` excludes."""
    folder = _below.get()
    named = path.absolute()
    if folder is None or not named.is_relative_to(folder):
        return
    real = path.resolve()
    shown = named.relative_to(folder).parts
    if (
        not real.is_relative_to(folder)
        or not os.path.samestat(real.stat(), os.fstat(descriptor))
        or any(part.startswith(".") and part not in shown for part in real.relative_to(folder).parts)
    ):
        raise PermissionError(errno.EACCES, f"a link out of {folder}, or to a hidden file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; OSError where there is none, and for a pipe or a device, which may never come to an end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a folder, a pipe or a device, which keeps no log", str(path))
    try:
        refuse_way_out(path, descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a file; OSError where it cannot be read, is no regular file, or has more than ``most``."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return data


def text_of(path: Path) -> str:
    """Return the text of a file; empty where `read_regular` does not read it."""
    try:
        return read_regular(path).decode("utf-8", errors="replace")
    except OSError:
        return ""
