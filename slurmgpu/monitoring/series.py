"""The use of a run's GPUs over time, as far as the end of its samples reaches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.monitoring import samples
from slurmgpu.monitoring.json_rows import Row, positive, rows_at_end, whole

__all__ = ["GpuSeries", "busy_since", "gpu_series", "gpus_by_index", "grown"]

_TAIL = 1 << 20
"""Bytes from the end of a file: some thousand lines."""
_MOST_FILES = 16


class GpuSeries(NamedTuple):
    """One GPU of a job over time."""

    host: str
    gpu: int
    """Its number on the host."""
    use: list[float]
    """Share of the time between two samples in which a kernel ran, 0 to 1; oldest first."""


def gpu_series(run_dir: Path, job_id: int) -> list[GpuSeries]:
    """The use of each GPU by the newest start's samples, of 16 nodes at most; [] where nothing was sampled."""
    files = samples.sample_files(run_dir, job_id)
    newest = {samples.host_of(path): path for path in sorted(files, key=samples.restart_of)}
    found: dict[tuple[str, int], list[float]] = {}
    for host, path in sorted(newest.items())[:_MOST_FILES]:
        rows = [row for row in rows_at_end(path, samples.SAMPLE_SCHEMA, _TAIL) if row.get("kind") == "sample"]
        for before, row in pairwise(rows):
            old = gpus_by_index(before)
            for index, gpu in gpus_by_index(row).items():
                if (busy := busy_since(old.get(index, {}), gpu)) is not None:
                    found.setdefault((host, index), []).append(busy)
    return [GpuSeries(host, index, use) for (host, index), use in sorted(found.items())]


def gpus_by_index(row: Row) -> dict[int, Row]:
    """The GPUs of a sample, by their number on the host."""
    gpus = row.get("gpus")
    known = (gpu for gpu in gpus if isinstance(gpu, dict)) if isinstance(gpus, list) else ()
    return {index: gpu for gpu in known if (index := whole(gpu.get("index"))) is not None}


def busy_since(before: Row, now: Row) -> float | None:
    """Which share of the time between two samples a GPU was busy, 0 to 1; None where they do not tell."""
    busy, of = (grown(before, now, key) for key in ("busy_seconds", "busy_of_seconds"))
    return min(1.0, busy / of) if busy is not None and of else None


def grown(before: Row, now: Row, key: str) -> float | None:
    """By how much a total has grown from one sample to the next; None where one of them lacks it, or where it has shrunk."""
    last, first = positive(now.get(key)), positive(before.get(key))
    return None if last is None or first is None or last < first else last - first
