"""The use of a run's GPUs over time, as far as the end of its samples reaches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.monitoring import samples
from slurmgpu.monitoring.json_rows import Row, end_of, positive, whole

__all__ = ["GpuSeries", "gpu_series"]

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
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for host, path in sorted(newest.items())[:_MOST_FILES]:
        for row in end_of(path, samples.SCHEMA, _TAIL):
            for gpu in _gpus(row) if row.get("kind") == "sample" else ():
                index, busy = whole(gpu.get("index")), positive(gpu.get("busy_seconds"))
                watched = positive(gpu.get("busy_of_seconds"))
                if index is not None and busy is not None and watched is not None:
                    found.setdefault((host, index), []).append((busy, watched))
    return [GpuSeries(host, index, _shares(totals)) for (host, index), totals in sorted(found.items())]


def _shares(totals: list[tuple[float, float]]) -> list[float]:
    """What two totals after each other say of the time between them."""
    between = [
        (busy - busy_before, watched - watched_before)
        for (busy_before, watched_before), (busy, watched) in pairwise(totals)
    ]
    return [max(0.0, min(1.0, busy / watched)) for busy, watched in between if watched > 0]


def _gpus(row: Row) -> list[Row]:
    gpus = row.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
