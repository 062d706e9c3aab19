"""A job's samples over time, for plots: busy GPUs, their memory, CPUs, memory of the fullest node."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.monitoring.samples import SCHEMA, sample_files

__all__ = ["Line", "Series", "read_series"]

Line = list[tuple[float, float]]
"""Seconds since the first sample, and a value."""

_LARGEST = 8 << 20
_MOST_FILES = 64
_MOST_GPUS = 16


@dataclass
class Series:
    """What was sampled, by what it is of: `node1:0` of a GPU, `node1` of a node."""

    gpu_busy: dict[str, Line] = field(default_factory=dict)
    """Share of the time, 0 to 1."""
    gpu_memory: dict[str, Line] = field(default_factory=dict)
    """Bytes."""
    cpus: dict[str, Line] = field(default_factory=dict)
    """CPUs in use."""
    memory: dict[str, Line] = field(default_factory=dict)
    """Bytes of the job's processes."""

    def __bool__(self) -> bool:
        return any((self.gpu_busy, self.gpu_memory, self.cpus, self.memory))


def read_series(run_dir: Path, job_id: int) -> Series:
    """Read the samples of a job; of many nodes the first, of a long file the end."""
    found = Series()
    files = [
        (path, rows) for path in sample_files(run_dir, job_id)[:_MOST_FILES] if (rows := list(_rows(path)))
    ]
    times = [time for _, rows in files if (time := _number(rows[0], "time")) is not None]
    begin = min(times, default=0.0)
    for path, rows in files:
        host = path.name.partition("-")[2].removesuffix(".jsonl")
        before: Mapping[str, object] | None = None
        for row in rows:
            time = _number(row, "time")
            if time is not None:
                _add(found, host, time - begin, row, before)
            before = row
    return found


def _add(
    found: Series, host: str, at: float, row: Mapping[str, object], before: Mapping[str, object] | None
) -> None:
    """One sample's values; those that are totals as what was added since the sample before."""
    job, passed = _part(row, "job"), _gain(row, before or {}, "seconds")
    if (rss := _number(job, "rss")) is not None:
        found.memory.setdefault(host, []).append((at, rss))
    cpu = _gain(job, _part(before or {}, "job"), "cpu_seconds")
    if cpu is not None and passed:
        found.cpus.setdefault(host, []).append((at, cpu / passed))
    old = _gpus(before or {})
    for index, gpu in _gpus(row).items():
        name = f"{host}:{index}"
        if name not in found.gpu_busy and len(found.gpu_busy) >= _MOST_GPUS:
            continue
        busy, of = (_gain(gpu, old.get(index, {}), key) for key in ("busy_seconds", "busy_of_seconds"))
        if busy is not None and of:
            found.gpu_busy.setdefault(name, []).append((at, min(1.0, busy / of)))
        if (memory := _number(gpu, "memory")) is not None:
            found.gpu_memory.setdefault(name, []).append((at, memory))


def _rows(path: Path) -> Iterator[Mapping[str, object]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            return
        if there.st_size > _LARGEST:
            file.seek(there.st_size - _LARGEST)
            file.readline()
        for line in file.read(_LARGEST).split(b"\n"):
            try:
                row = json.loads(line) if line.startswith(b"{") else None
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and row.get("schema") == SCHEMA and row.get("kind") == "sample":
                yield row


def _gpus(row: Mapping[str, object]) -> dict[int, Mapping[str, object]]:
    gpus = row.get("gpus")
    known = (gpu for gpu in gpus if isinstance(gpu, dict)) if isinstance(gpus, list) else ()
    return {int(index): gpu for gpu in known if (index := _number(gpu, "index")) is not None}


def _part(row: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = row.get(key)
    return part if isinstance(part, dict) else {}


def _gain(now: Mapping[str, object], before: Mapping[str, object], key: str) -> float | None:
    last, first = _number(now, key), _number(before, key)
    return None if last is None or first is None or last < first else last - first


def _number(row: Mapping[str, object], key: str) -> float | None:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e18 else None
