"""Files in folders of others, or that others may have put there: opened so that nothing waits for them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_regular"]


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; OSError where there is none, and for a pipe or a device, which may never come to an end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a folder, a pipe or a device, which keeps no log", str(path))
    return os.fdopen(descriptor, "rb")
