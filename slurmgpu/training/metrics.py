"""``metrics.jsonl``: one JSON object a line (schema ``slurmgpu.metrics/1``), in SI units."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

__all__ = ["SCHEMA", "Metrics"]

SCHEMA = "slurmgpu.metrics/1"


class Metrics:
    """Appends lines to the run's metrics; without a path (all ranks but 0) it writes nothing.

    ``time`` is in seconds since 1970 (UTC). Where a step stands twice, the highest ``restart`` counts.
    """

    def __init__(self, path: Optional[Path], restart: int) -> None:
        self._restart = restart
        self._failed = False
        self._file: Optional[int] = None
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a line that was cut off when an earlier start was killed

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one line; a number that is not finite becomes null, for JSON knows none."""
        if self._file is None:
            return
        line = {
            "schema": SCHEMA,
            "time": round(time.time(), 6),
            "restart": self._restart,
            "rank": 0,
            "step": step,
            "kind": kind,
            "values": _finite(values),
        }
        # One write of the whole line: readers and a kill see it whole or hardly at all.
        try:
            os.write(self._file, json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        except OSError as error:  # a full disk costs lines, not the training
            if not self._failed:
                self._failed = True
                print(
                    f"warning: metrics.jsonl cannot be written: {error.strerror}", file=sys.stderr, flush=True
                )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
