"""What a job really used, from the samples that its nodes wrote into the run directory, and its GPUs' use over time.

A sample's figures are totals since the sampler began (docs/sampling.md), so that the first and the last line of a file say
all: however long the job was, and whatever was thinned out between them, two small reads do.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slurmgpu.models.run import GpuSummary, SampleSummary
from slurmgpu.training.formats.rows import Row, opened, part, positive, rows_at_end, rows_in, whole

__all__ = [
    "SAMPLE_SCHEMA",
    "GpuSeries",
    "busy_since",
    "gpu_series",
    "gpus_by_index",
    "grown",
    "host_of",
    "sample_files",
    "summary",
]

SAMPLE_SCHEMA = "slurmgpu.sample/1"
FOLDER = "samples"
_HEAD = 64 * 1024  # bytes that hold the first line, with the names of all GPUs
_SUMMARY_TAIL = 256 * 1024  # bytes that hold the last whole line
_MOST_SUMMARY_FILES = 20_000  # nodes and starts of one job
_TAIL = 1 << 20  # bytes from the end of a file: some thousand lines
_MOST_FILES = 16
_MOST_GPUS = 200_000  # of all files together
_NAME = re.compile(r"(\d+)\.(\d+)-(.+)\.jsonl\Z")


def summary(run_dir: Path, job_id: int) -> SampleSummary | None:
    """Add up a job's samples over its nodes and starts; None where there are none. Never raises for what is in the files."""
    seen: list[_Seen] = []
    room = _MOST_GPUS
    for path in sample_files(run_dir, job_id):
        if (one := _read(path)) is not None:
            seen.append(one)
            room -= len(one.gpus)
        if room < 0:
            return None  # no job has as many
    if not seen:
        return None
    starts: dict[int, list[_Seen]] = {}
    for one in seen:
        starts.setdefault(one.restart, []).append(one)
    seconds = sum(max(one.seconds for one in start) for start in starts.values())
    newest = starts[max(starts)]
    return SampleSummary(
        seconds=seconds,
        hosts=len({one.host for one in seen}),
        nodes=max((one.nodes for one in newest if one.nodes), default=None),
        gpus=tuple(_gpus(seen)),
        cpu_cores_mean=_cores(starts.values()),
        rss_peak=max((one.rss_peak for one in seen if one.rss_peak is not None), default=None),
        read_bytes=_sum(one.read_bytes for one in seen),
        written_bytes=_sum(one.written_bytes for one in seen),
        age_seconds=max(0.0, time.time() - max(one.time for one in seen)),
    )


def sample_files(run_dir: Path, job_id: int) -> list[Path]:
    """Return the files of a job's samples: one for each start and node."""
    try:
        with os.scandir(run_dir / FOLDER) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(f"{job_id}.")]
    except OSError:
        return []
    ours = sorted(name for name in names if (match := _NAME.match(name)) and int(match[1]) == job_id)
    return [run_dir / FOLDER / name for name in ours[:_MOST_SUMMARY_FILES]]


def host_of(path: Path) -> str:
    """Return the node whose samples a file has."""
    match = _NAME.match(path.name)
    return match[3] if match else ""


def restart_of(path: Path) -> int:
    """Return the start of the job whose samples a file has; 0 is the first."""
    match = _NAME.match(path.name)
    return int(match[2]) if match else 0


class _Seen(NamedTuple):
    """One file: its first and its last sample, taken together."""

    host: str
    restart: int
    time: float
    seconds: float
    nodes: int | None
    cpu_seconds: float | None
    rss_peak: int | None
    read_bytes: int | None
    written_bytes: int | None
    gpus: dict[int, GpuSummary]
    busy: dict[int, tuple[float, float]]
    """Of each GPU: seconds in which it was busy, and of how many."""
    sms: dict[int, tuple[float, float]]
    """The same of its SMs, on average."""
    powered: dict[int, tuple[float, float]]
    """Of each GPU: joules, and over how many seconds."""


def _read(path: Path) -> _Seen | None:
    """Return what one file says; None where no whole sample is in it."""
    try:
        head, tail = _ends(path)
    except OSError:
        return None
    start = next((row for row in head if row.get("kind") == "start"), {})
    first = next((row for row in head if row.get("kind") == "sample"), None)
    last = next((row for row in tail if row.get("kind") == "sample"), None)
    match = _NAME.match(path.name)
    if last is None or match is None:
        return None
    first = first or last
    host, job, before = match[3], part(last, "job"), part(first, "job")
    gpus, named = gpus_by_index(last), gpus_by_index(start)
    return _Seen(
        host=host,
        restart=int(match[2]),
        time=positive(last.get("time")) or 0.0,
        seconds=positive(last.get("seconds")) or 0.0,
        nodes=whole(start.get("nodes")),
        cpu_seconds=grown(before, job, "cpu_seconds"),
        rss_peak=whole(job.get("rss_peak")),
        read_bytes=_int(grown(before, job, "read_bytes")),
        written_bytes=_int(grown(before, job, "written_bytes")),
        gpus={index: _gpu(host, index, row, named.get(index, {})) for index, row in gpus.items()},
        busy=_pairs(gpus, "busy_seconds", "busy_of_seconds"),
        sms=_pairs(gpus, "sm_seconds", "sm_of_seconds"),
        powered=_pairs(gpus, "energy", "energy_of_seconds"),
    )


def _ends(path: Path) -> tuple[list[Row], Iterator[Row]]:
    """Return the rows at the beginning, and those at the end, the last one first."""
    with opened(path, SAMPLE_SCHEMA) as file:
        lines = file.end(_SUMMARY_TAIL).split(b"\n")
        return list(file.head(_HEAD)), (
            row for line in reversed(lines) for row in rows_in(line, SAMPLE_SCHEMA)
        )


def _gpu(host: str, index: int, row: Row, named: Row) -> GpuSummary:
    """Return what one start says of a GPU; its means are worked out over all starts."""
    name = named.get("name")
    return GpuSummary(
        host=host,
        index=index,
        name=name if isinstance(name, str) else None,
        memory_peak=whole(row.get("memory_peak")),
        memory_total=whole(named.get("memory_total")),
        throttled=tuple(sorted(one for one in _list(row.get("throttled_ever")) if isinstance(one, str))),
        xids=tuple(sorted({one for one in _list(row.get("xids")) if type(one) is int})),
        ecc_errors=whole(row.get("ecc_errors")),
    )


def _gpus(seen: list[_Seen]) -> Iterator[GpuSummary]:
    """Yield each GPU over all starts of the job."""
    found: dict[tuple[str, int], list[_Seen]] = {}
    for one in seen:
        for index in one.gpus:
            found.setdefault((one.host, index), []).append(one)
    for (_, index), starts in sorted(found.items()):
        of = [one.gpus[index] for one in starts]
        busy, watched = _sums(one.busy.get(index) for one in starts)
        sm_busy, sm_watched = _sums(one.sms.get(index) for one in starts)
        energy, powered = _sums(one.powered.get(index) for one in starts)
        yield of[-1].model_copy(
            update={
                "utilisation_mean": min(1.0, busy / watched) if watched else None,
                "sm_activity_mean": min(1.0, sm_busy / sm_watched) if sm_watched else None,
                "memory_peak": max(
                    (one.memory_peak for one in of if one.memory_peak is not None), default=None
                ),
                "energy": energy if powered else None,
                "power_mean": energy / powered if powered else None,
                "throttled": tuple(sorted({why for one in of for why in one.throttled})),
                "xids": tuple(sorted({xid for one in of for xid in one.xids})),
                "ecc_errors": _sum(one.ecc_errors for one in of),
            }
        )


def _cores(starts: Iterable[Sequence[_Seen]]) -> float | None:
    """CPU time of all nodes over time, start by start."""
    used = time_of = 0.0
    for start in starts:
        known = [(one.cpu_seconds, one.seconds) for one in start if one.cpu_seconds is not None]
        used += sum(cpu for cpu, _ in known)
        time_of += max((seconds for _, seconds in known), default=0.0)
    return used / time_of if time_of else None


def _sums(pairs: Iterator[tuple[float, float] | None]) -> tuple[float, float]:
    known = [pair for pair in pairs if pair is not None]
    return sum(one for one, _ in known), sum(other for _, other in known)


def _sum(amounts: Iterator[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _pairs(gpus: Mapping[int, Row], amount: str, of: str) -> dict[int, tuple[float, float]]:
    """Of each GPU that has both: a total, and over how many seconds."""
    found = {}
    for index, row in gpus.items():
        first, second = positive(row.get(amount)), positive(row.get(of))
        if first is not None and second:
            found[index] = first, second
    return found


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


class GpuSeries(NamedTuple):
    """One GPU of a job over time."""

    host: str
    gpu: int
    """Its number on the host."""
    use: list[float]
    """Share of the time between two samples in which a kernel ran, 0 to 1; oldest first."""


def gpu_series(run_dir: Path, job_id: int) -> list[GpuSeries]:
    """Return the use of each GPU by the newest start's samples, of 16 nodes at most; [] where nothing was sampled."""
    files = sample_files(run_dir, job_id)
    newest = {host_of(path): path for path in sorted(files, key=restart_of)}
    found: dict[tuple[str, int], list[float]] = {}
    for host, path in sorted(newest.items())[:_MOST_FILES]:
        rows = [row for row in rows_at_end(path, SAMPLE_SCHEMA, _TAIL) if row.get("kind") == "sample"]
        for before, row in pairwise(rows):
            old = gpus_by_index(before)
            for index, gpu in gpus_by_index(row).items():
                if (busy := busy_since(old.get(index, {}), gpu)) is not None:
                    found.setdefault((host, index), []).append(busy)
    return [GpuSeries(host, index, use) for (host, index), use in sorted(found.items())]


def gpus_by_index(row: Row) -> dict[int, Row]:
    """Return the GPUs of a sample, by their number on the host."""
    gpus = row.get("gpus")
    known = (gpu for gpu in gpus if isinstance(gpu, dict)) if isinstance(gpus, list) else ()
    return {index: gpu for gpu in known if (index := whole(gpu.get("index"))) is not None}


def busy_since(before: Row, now: Row) -> float | None:
    """Return which share of the time between two samples a GPU was busy, 0 to 1; None where they do not tell."""
    busy, of = (grown(before, now, key) for key in ("busy_seconds", "busy_of_seconds"))
    return min(1.0, busy / of) if busy is not None and of else None


def grown(before: Row, now: Row, key: str) -> float | None:
    """By how much a total has grown from one sample to the next; None where one of them lacks it, or where it has shrunk."""
    last, first = positive(now.get(key)), positive(before.get(key))
    return None if last is None or first is None or last < first else last - first
