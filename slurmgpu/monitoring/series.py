"""A run's figures over time, as far as the end of its files reaches: losses from metrics, GPU use from samples."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.monitoring import progress, samples

__all__ = ["GpuSeries", "gpu_series", "losses"]

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


def losses(run_dir: Path) -> list[tuple[int, float]]:
    """Steps and their losses by the last mebibyte of metrics.jsonl, oldest first; [] where there are none."""
    found = []
    for row in progress.rows_of(_tail(run_dir / progress.METRICS)):
        values = row.get("values")
        step = row.get("step")
        if row.get("kind") == "train" and isinstance(values, dict) and isinstance(step, int):
            loss = values.get("loss")
            if isinstance(loss, (int, float)) and abs(loss) < float("inf"):
                found.append((step, float(loss)))
    return found


def gpu_series(run_dir: Path, job_id: int) -> list[GpuSeries]:
    """The use of each GPU by the newest start's samples, of 16 nodes at most; [] where nothing was sampled."""
    files = samples.sample_files(run_dir, job_id)
    newest = {samples.host_of(path): path for path in sorted(files, key=samples.restart_of)}
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for host, path in sorted(newest.items())[:_MOST_FILES]:
        for row in samples.rows_of(_tail(path).split(b"\n")):
            for gpu in _gpus(row) if row.get("kind") == "sample" else ():
                index, busy, watched = gpu.get("index"), gpu.get("busy_seconds"), gpu.get("busy_of_seconds")
                if (
                    isinstance(index, int)
                    and isinstance(busy, (int, float))
                    and isinstance(watched, (int, float))
                ):
                    found.setdefault((host, index), []).append((float(busy), float(watched)))
    return [GpuSeries(host, index, _shares(totals)) for (host, index), totals in sorted(found.items())]


def _shares(totals: list[tuple[float, float]]) -> list[float]:
    """What two totals after each other say of the time between them."""
    between = [
        (busy - busy_before, watched - watched_before)
        for (busy_before, watched_before), (busy, watched) in pairwise(totals)
    ]
    return [max(0.0, min(1.0, busy / watched)) for busy, watched in between if watched > 0]


def _gpus(row: Mapping[str, object]) -> list[Mapping[str, object]]:
    gpus = row.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _tail(path: Path) -> bytes:
    """The end of a file, from the beginning of a line; nothing of a pipe or a device in its place."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return b""
        at = max(0, found.st_size - _TAIL)
        text = os.pread(file, _TAIL, at)
    except OSError:
        return b""
    finally:
        os.close(file)
    return text if at == 0 else text[text.find(b"\n") + 1 :]
