"""``metrics.jsonl``: one JSON object a line (schema ``slurmgpu.metrics/1``), in SI units."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Optional

from .track import Line

__all__ = ["SCHEMA", "Metrics"]

SCHEMA = "slurmgpu.metrics/1"
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_HELD = 1.0  # seconds for which a line may be held back, for many at once cost less than one by one


class Metrics:
    """Appends lines to the run's metrics; without a path (all ranks but 0) it writes nothing.

    ``time`` is in seconds since 1970 (UTC). Where a step stands twice, the highest ``restart`` counts. ``also`` gets
    the lines that are written.
    """

    def __init__(
        self,
        path: Optional[Path],
        restart: int,
        also: Callable[[Sequence[Line]], None] = lambda _lines: None,
    ) -> None:
        self._restart, self._also = restart, also
        self._failed = False
        self._rest = b""  # of a line that a full disk cut off
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._written = 0.0
        self._file: Optional[int] = None
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a line that was cut off when an earlier start was killed

    def write(self, kind: str, step: int, values: Mapping[str, object]) -> None:
        """Append one line; a number that is not finite becomes null, for JSON knows none."""
        if self._file is None:
            return
        with self._lock:
            self._lines.append((time.time(), kind, step, values))
        if kind != "train":
            self.flush()
        else:
            self.flush_held()

    def flush_held(self) -> None:
        """Write out what has been held back for a second."""
        if self._lines and time.monotonic() - self._written >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Write out all lines, whole: readers and a kill see each of them whole or hardly at all."""
        with self._lock:
            lines, self._lines = self._lines, []
            text = "".join(map(self._line, lines))
            self._written = time.monotonic()
            if not text or self._file is None:
                return
            self._also(lines)
            self._append(self._file, text.encode())

    def _append(self, file: int, text: bytes) -> None:
        """Write what fits: a full disk costs lines, not the training, and a line that it cut is completed later."""
        text = self._rest + text
        done, reason = 0, "the disk took only a part"
        try:
            done = os.write(file, text)
        except OSError as error:
            reason = error.strerror or str(error)
        if done == len(text):
            self._rest = b""
            return
        inside = text[done - 1 : done] != b"\n" if done else bool(self._rest)
        self._rest = text[done : text.index(b"\n", done) + 1] if inside else b""
        if not self._failed:
            self._failed = True
            with contextlib.suppress(OSError):  # the log may be on the same disk
                print(f"warning: metrics.jsonl cannot be written: {reason}", file=sys.stderr, flush=True)

    def _line(self, held: Line) -> str:
        when, kind, step, values = held
        line = {
            "schema": SCHEMA,
            "time": round(when, 6),
            "restart": self._restart,
            "rank": 0,
            "step": step,
            "kind": kind,
            "values": values,
        }
        try:
            return _ENCODE(line) + "\n"
        except ValueError:
            return _ENCODE(_finite(line)) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
