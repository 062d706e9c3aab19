"""What a container image's file is, by its first bytes."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["image_format"]

# Where each mark stands: apptainer's pkg/image (sif.go, squashfs.go, ext3.go) looks for the same ones.
_MARKS = (
    ("SIF", 32, b"SIF_MAGIC"),
    ("SquashFS", 0, b"hsqs"),
    ("ext3", 1080, b"\x53\xef"),
)
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
"""The line before the file system in images of Singularity 2; a SIF begins with it, too."""


def image_format(path: Path) -> str | None:
    """SIF, SquashFS or ext3; ``folder`` for one; ``""`` for any other file; None where this machine cannot read it."""
    try:
        if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir() raises for a name too long for the disk
            return "folder"
        if not os.path.isfile(path):  # noqa: PTH113 - the same; a pipe is not waited for
            return None
        with path.open("rb") as file:
            head = file.read(2048)
    except OSError:
        return None
    bodies = (head, head[len(_LAUNCH) :] if head.startswith(_LAUNCH) else b"")
    return next((name for name, at, mark in _MARKS for body in bodies if body.startswith(mark, at)), "")
