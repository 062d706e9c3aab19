"""A job's real use, from the samples that its nodes wrote into the run directory: in all, and over time.

A sample's figures are totals since the sampler began (docs/sampling.md), so that the first and the last line of a file say
all: however long the job was, and whatever was thinned out between them, two small reads do.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from slurmgpu.models.run import GpuSummary, SampleSummary
from slurmgpu.training.formats.rows import Row, opened, part, positive, rows_at_end, rows_in, whole

__all__ = ["SAMPLE_SCHEMA", "GpuSeries", "Line", "Series", "gpu_series", "read_series", "summary"]

SAMPLE_SCHEMA = "slurmgpu.sample/1"
_FOLDER = "samples"
_HEAD = 64 * 1024  # bytes that hold the first line, with the names of all GPUs
_SUMMARY_TAIL = 256 * 1024  # bytes that hold the last whole line
_MOST_SUMMARY_FILES = 20_000  # nodes and starts of one job
_MOST_GPUS = 200_000  # of all files together
_TAIL, _NEWEST_FILES = 1 << 20, 16
"""Bytes from the end of a file, some thousand lines, and files, for the newest use of GPUs."""
_LONG_TAIL, _ALL_FILES, _DRAWN_GPUS = 8 << 20, 64, 16
"""The same for all that is drawn over time."""
_NAME = re.compile(r"(\d+)\.(\d+)-(.+)\.jsonl\Z")


class _File(NamedTuple):
    """The samples of one start on one node: their head, and the first and the last of them."""

    host: str
    restart: int
    head: Row
    first: Row
    last: Row

    @property
    def seconds(self) -> float:
        return positive(self.last.get("seconds")) or 0.0

    def grown(self, key: str) -> float | None:
        """Return by how much a total of the job's has grown."""
        return _grown(part(self.first, "job"), part(self.last, "job"), key)


def summary(run_dir: Path, job_id: int) -> SampleSummary | None:
    """Add up a job's samples over its nodes and starts; None where there are none. Never raises for what is in the files."""
    files: list[_File] = []
    gpus: dict[tuple[str, int], list[tuple[Row, Row]]] = {}
    room = _MOST_GPUS
    for path, restart, host in _sample_files(run_dir, job_id):
        try:
            with opened(path, SAMPLE_SCHEMA) as file:
                lines, head = file.end(_SUMMARY_TAIL).split(b"\n"), list(file.head(_HEAD))
        except OSError:
            continue
        newest_first = (row for line in reversed(lines) for row in rows_in(line, SAMPLE_SCHEMA))
        last = next((row for row in newest_first if row.get("kind") == "sample"), None)
        if last is None:
            continue
        first = next((row for row in head if row.get("kind") == "sample"), last)
        start = next((row for row in head if row.get("kind") == "start"), {})
        files.append(_File(host, restart, start, first, last))
        found, named = _gpus_by_index(last), _gpus_by_index(start)
        for index, gpu in found.items():
            gpus.setdefault((host, index), []).append((gpu, named.get(index, {})))
        room -= len(found)
        if room < 0:
            return None  # no job has as many
    if not files:
        return None
    starts: dict[int, list[_File]] = {}
    for one in files:
        starts.setdefault(one.restart, []).append(one)
    used = used_in = 0.0
    for start_files in starts.values():
        known = [(cpu, one.seconds) for one in start_files if (cpu := one.grown("cpu_seconds")) is not None]
        used += sum(cpu for cpu, _ in known)
        used_in += max((seconds for _, seconds in known), default=0.0)
    nodes = (whole(one.head.get("nodes")) for one in starts[max(starts)])
    peaks = (whole(part(one.last, "job").get("rss_peak")) for one in files)
    return SampleSummary(
        seconds=sum(max(one.seconds for one in start_files) for start_files in starts.values()),
        hosts=len({one.host for one in files}),
        nodes=max(filter(None, nodes), default=None),
        gpus=tuple(_gpu(*at, rows) for at, rows in sorted(gpus.items())),
        cpu_cores_mean=used / used_in if used_in else None,
        rss_peak=max((peak for peak in peaks if peak is not None), default=None),
        read_bytes=_sum(one.grown("read_bytes") for one in files),
        written_bytes=_sum(one.grown("written_bytes") for one in files),
        age_seconds=max(0.0, time.time() - max(positive(one.last.get("time")) or 0.0 for one in files)),
    )


def _gpu(host: str, index: int, starts: list[tuple[Row, Row]]) -> GpuSummary:
    """Return what a GPU did over all starts of the job, by the last row of each, and that with its name."""
    rows, named = [row for row, _ in starts], starts[-1][1]

    def over_time(amount: str, of: str) -> tuple[float, float]:
        pairs = [(positive(row.get(amount)), positive(row.get(of))) for row in rows]
        known = [(total, seconds) for total, seconds in pairs if total is not None and seconds]
        return sum(total for total, _ in known), sum(seconds for _, seconds in known)

    busy, watched = over_time("busy_seconds", "busy_of_seconds")
    sm_busy, sm_watched = over_time("sm_seconds", "sm_of_seconds")
    energy, powered = over_time("energy", "energy_of_seconds")
    name = named.get("name")
    peaks = (whole(row.get("memory_peak")) for row in rows)
    throttled = {one for row in rows for one in _list(row.get("throttled_ever")) if isinstance(one, str)}
    xids = {one for row in rows for one in _list(row.get("xids")) if type(one) is int}
    return GpuSummary(
        host=host,
        index=index,
        name=name if isinstance(name, str) else None,
        utilisation_mean=min(1.0, busy / watched) if watched else None,
        sm_activity_mean=min(1.0, sm_busy / sm_watched) if sm_watched else None,
        memory_peak=max((peak for peak in peaks if peak is not None), default=None),
        memory_total=whole(named.get("memory_total")),
        energy=energy if powered else None,
        power_mean=energy / powered if powered else None,
        throttled=tuple(sorted(throttled)),
        xids=tuple(sorted(xids)),
        ecc_errors=_sum(whole(row.get("ecc_errors")) for row in rows),
    )


def _sample_files(run_dir: Path, job_id: int) -> list[tuple[Path, int, str]]:
    """Return the files of a job's samples, by their names: one for each start, with its number, and node."""
    folder = run_dir / _FOLDER
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.startswith(f"{job_id}."))
    except OSError:
        return []
    matches = (match for name in names if (match := _NAME.match(name)) and int(match[1]) == job_id)
    return [(folder / match[0], int(match[2]), match[3]) for match in matches][:_MOST_SUMMARY_FILES]


def _sum(amounts: Iterator[float | None]) -> int | None:
    known = [int(amount) for amount in amounts if amount is not None]
    return sum(known) if known else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


Line = list[tuple[float, float]]
"""Seconds since the first sample, and a value."""


@dataclass
class Series:
    """Samples by their subject: `node1:0` of a GPU, `node1` of a node."""

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


class GpuSeries(NamedTuple):
    """One GPU of a job over time."""

    host: str
    gpu: int
    """Its number on the host."""
    use: list[float]
    """Share of the time between two samples in which a kernel ran, 0 to 1; oldest first."""


def read_series(run_dir: Path, job_id: int) -> Series:
    """Read the samples of a job; of many nodes the first, of a long file the end."""
    found = Series()
    files = [
        (host, _samples(path, _LONG_TAIL)) for path, _, host in _sample_files(run_dir, job_id)[:_ALL_FILES]
    ]
    times = (positive(samples[0][1].get("time")) for _, samples in files if samples)
    begin = min((time for time in times if time is not None), default=0.0)
    for host, samples in files:
        for before, row in samples:
            if (time := positive(row.get("time"))) is None:
                continue
            at, job = time - begin, part(row, "job")
            if (rss := positive(job.get("rss"))) is not None:
                found.memory.setdefault(host, []).append((at, rss))
            cpu, passed = _grown(part(before, "job"), job, "cpu_seconds"), _grown(before, row, "seconds")
            if cpu is not None and passed:
                found.cpus.setdefault(host, []).append((at, cpu / passed))
            for index, busy, gpu in _gpus_since(before, row):
                name = f"{host}:{index}"
                if name not in found.gpu_busy and len(found.gpu_busy) >= _DRAWN_GPUS:
                    continue
                if busy is not None:
                    found.gpu_busy.setdefault(name, []).append((at, busy))
                if (memory := positive(gpu.get("memory"))) is not None:
                    found.gpu_memory.setdefault(name, []).append((at, memory))
    return found


def gpu_series(run_dir: Path, job_id: int) -> list[GpuSeries]:
    """Return the use of each GPU by the newest start's samples, of 16 nodes at most; [] where nothing was sampled."""
    files = sorted(_sample_files(run_dir, job_id), key=lambda file: file[1])
    newest = {host: path for path, _, host in files}
    found: dict[tuple[str, int], list[float]] = {}
    for host, path in sorted(newest.items())[:_NEWEST_FILES]:
        for before, row in _samples(path, _TAIL):
            for index, busy, _ in _gpus_since(before, row):
                if busy is not None:
                    found.setdefault((host, index), []).append(busy)
    return [GpuSeries(host, index, use) for (host, index), use in sorted(found.items())]


def _samples(path: Path, most: int) -> list[tuple[Row, Row]]:
    """Return the samples at the end of a file, each after the one before it; the first after an empty one."""
    rows = [row for row in rows_at_end(path, SAMPLE_SCHEMA, most) if row.get("kind") == "sample"]
    return list(zip([{}, *rows], rows, strict=False))


def _gpus_since(before: Row, now: Row) -> Iterator[tuple[int, float | None, Row]]:
    """Yield each GPU of a sample, with the share of the time since the one before in which it was busy, where they tell."""
    old = _gpus_by_index(before)
    for index, gpu in _gpus_by_index(now).items():
        busy, of = (_grown(old.get(index, {}), gpu, key) for key in ("busy_seconds", "busy_of_seconds"))
        yield index, min(1.0, busy / of) if busy is not None and of else None, gpu


def _gpus_by_index(row: Row) -> dict[int, Row]:
    known = (gpu for gpu in _list(row.get("gpus")) if isinstance(gpu, dict))
    return {index: gpu for gpu in known if (index := whole(gpu.get("index"))) is not None}


def _grown(before: Row, now: Row, key: str) -> float | None:
    """Return by how much a total has grown between two samples; None where one of them lacks it, or where it has shrunk."""
    last, first = positive(now.get(key)), positive(before.get(key))
    return None if last is None or first is None or last < first else last - first
