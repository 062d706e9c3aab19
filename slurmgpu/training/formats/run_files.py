"""Small files by which a job and the command line tell each other something: a stop, comparisons, estimates, benches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BENCH_SCHEMA",
    "COMPARED_FILE",
    "COMPARE_FILE",
    "ESTIMATE_FILE",
    "ORDERLY",
    "STOP_FILE",
    "Stop",
    "read_stop",
]

BENCH_SCHEMA = "slurmgpu.bench/1"
COMPARE_FILE, COMPARED_FILE = "compare.json", "compared.json"
ESTIMATE_FILE = "estimate.json"
STOP_FILE = Path("state", "stop.json")
ORDERLY = frozenset({"time", "SIGTERM", "SIGUSR1", "SIGUSR2"})
"""The reasons with which a training stops before its end with everything saved, in the mark and in metrics (docs/metrics.md)."""


class Stop(NamedTuple):
    """Why a start of a training stopped before its end, and where."""

    reason: str
    step: int
    gained: int
    """Steps that this start has taken further."""
    job_id: str
    restart: int

    @property
    def is_orderly(self) -> bool:
        """Return whether everything is saved, so that another start goes on from here."""
        return self.reason in ORDERLY

    def document(self, time: float) -> dict[str, object]:
        """Return what the file holds; the batch script reads ``requeue``: whether to start the training again by itself."""
        return {
            "schema": "slurmgpu.stop/1",
            "reason": self.reason,
            "step": self.step,
            "gained": self.gained,
            "requeue": self.is_orderly and self.gained > 0,
            "job_id": self.job_id,
            "restart": self.restart,
            "time": time,
        }


def read_stop(text: bytes) -> Stop:
    """Return what a file says; ValueError, KeyError, TypeError or RecursionError where it is none."""
    found = json.loads(text)
    return Stop(
        str(found["reason"]),
        int(found["step"]),
        int(found["gained"]),
        str(found["job_id"]),
        int(found["restart"]),
    )
