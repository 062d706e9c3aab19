"""Files in folders of others, or that others may have put there: opened so that nothing waits for them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from slurmgpu.files.trust import refuse_way_out

__all__ = ["open_regular", "read_regular", "text_of"]

LARGEST = 16 << 20
"""Bytes: no script and no configuration has as many, and a file of others may have no end."""


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
