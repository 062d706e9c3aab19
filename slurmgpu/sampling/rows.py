"""A file of JSON rows that stays small however long a job is, and costs the job nothing when it cannot be written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["LIMIT", "Rows"]

LIMIT = 4 << 20
"""Bytes at which a file is thinned out to half."""


class Rows:
    """Appends rows to a file; OSError from the constructor alone, when it cannot be made.

    At ``limit`` bytes every second sample goes. Since the figures in each are totals, none is lost by that.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self._path, self._limit = path, limit
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._opened()
        self._torn = os.fstat(self._file).st_size > 0  # an earlier writer may have left half a line

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, row: Mapping[str, object]) -> bool:
        """Append a row, whole or not at all; whether the file was thinned out, so that fewer should follow."""
        line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        thinned = False
        with contextlib.suppress(
            OSError
        ):  # a full disk, a quota, a folder that was removed: rows are lost, no more
            if os.fstat(self._file).st_size + len(line) > self._limit:
                self._thin()
                thinned = True
            text = b"\n" + line if self._torn else line
            self._torn = True
            self._torn = os.write(self._file, text) != len(text)
        return thinned

    def _thin(self) -> None:
        """Leave out every second sample; the file is replaced at once, so that readers see one or the other."""
        kept, at = [], 0
        for line in self._path.read_bytes().split(b"\n"):
            if not line.startswith(b"{"):
                continue
            at += b'"kind":"sample"' in line
            # The first sample stays: what has grown since is reckoned from it.
            if at % 2 or b'"kind":"sample"' not in line:
                kept.append(line)
        new = self._path.with_name(self._path.name + ".thin")
        try:
            new.write_bytes(b"\n".join(kept) + b"\n")
            new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        os.close(self._file)
        self._file, self._torn = self._opened(), False
