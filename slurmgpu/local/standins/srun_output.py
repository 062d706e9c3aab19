"""Where the output of srun's tasks goes: as it is, into files, or labelled with the task's rank."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

__all__ = ["Labels", "output_file"]


def output_file(pattern: str, values: Mapping[str, str]) -> str | None:
    """Expand srun's pattern for a file name (``%t``, ``%03t``, ``%%``); None for ``none`` and ``all``.

    ``values`` maps the letters that are known (j, J, s, t, n, N, x, u) to their text for one task.
    """
    if pattern in ("", "all"):
        return None
    if pattern == "none":
        return os.devnull

    def expand(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter == "%":
            return "%"
        return values[letter].zfill(int(width or 0)) if letter in values else match.group()

    return re.sub(r"%(\d{0,2})([a-zA-Z%])", expand, pattern)


class Labels:
    """Reads the tasks' output by line and passes it on as ``RANK: line`` (srun --label)."""

    def __init__(self, tasks: int) -> None:
        self._width = len(str(tasks - 1))
        self._open: dict[int, tuple[int, int, bytearray]] = {}

    def add(self, rank: int, target: int) -> int:
        """Return the descriptor that a task writes to; its lines go to descriptor ``target``."""
        read_end, write_end = os.pipe()
        self._open[read_end] = (rank, target, bytearray())
        return write_end

    @property
    def descriptors(self) -> list[int]:
        """What to wait for."""
        return list(self._open)

    def pass_on(self, read_end: int) -> None:
        """Pass on the lines that are complete, and the rest at the end of the output."""
        rank, target, rest = self._open[read_end]
        data = os.read(read_end, 65536)
        rest += data
        if not data:
            os.close(read_end)
            del self._open[read_end]
        *lines, unfinished = rest.split(b"\n")
        if not data and unfinished:
            lines.append(unfinished)
            unfinished = bytearray()
        rest[:] = unfinished
        stream = sys.stdout if target == 1 else sys.stderr
        for line in lines:
            stream.buffer.write(b"%*d: %s\n" % (self._width, rank, bytes(line)))
        stream.flush()
