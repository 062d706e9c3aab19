"""A job's samples over time, for plots: busy GPUs, their memory, CPUs, memory of the fullest node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.monitoring.json_rows import Row, part, positive, rows_at_end
from slurmgpu.monitoring.samples import SAMPLE_SCHEMA, host_of, sample_files
from slurmgpu.monitoring.series import busy_since, gpus_by_index, grown

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
    times = [time for _, rows in files if (time := positive(rows[0].get("time"))) is not None]
    begin = min(times, default=0.0)
    for path, rows in files:
        host = host_of(path)
        before: Row | None = None
        for row in rows:
            time = positive(row.get("time"))
            if time is not None:
                _add(found, host, time - begin, row, before)
            before = row
    return found


def _add(found: Series, host: str, at: float, row: Row, before: Row | None) -> None:
    """One sample's values; those that are totals as what was added since the sample before."""
    before = before or {}
    job, passed = part(row, "job"), grown(before, row, "seconds")
    if (rss := positive(job.get("rss"))) is not None:
        found.memory.setdefault(host, []).append((at, rss))
    cpu = grown(part(before, "job"), job, "cpu_seconds")
    if cpu is not None and passed:
        found.cpus.setdefault(host, []).append((at, cpu / passed))
    old = gpus_by_index(before)
    for index, gpu in gpus_by_index(row).items():
        name = f"{host}:{index}"
        if name not in found.gpu_busy and len(found.gpu_busy) >= _MOST_GPUS:
            continue
        if (busy := busy_since(old.get(index, {}), gpu)) is not None:
            found.gpu_busy.setdefault(name, []).append((at, busy))
        if (memory := positive(gpu.get("memory"))) is not None:
            found.gpu_memory.setdefault(name, []).append((at, memory))


def _rows(path: Path) -> Iterator[Row]:
    return (row for row in rows_at_end(path, SAMPLE_SCHEMA, _LARGEST) if row.get("kind") == "sample")
