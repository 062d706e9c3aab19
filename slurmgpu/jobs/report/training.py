"""A training by its metrics.jsonl, and a job's samples over time, for plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.runs.samples import SAMPLE_SCHEMA, busy_since, gpus_by_index, grown, host_of, sample_files
from slurmgpu.training.formats.metrics import (
    METRICS_FILE,
    METRICS_SCHEMA,
    MetricsRow,
    intervals_of,
    kept_intervals,
    metrics_rows,
)
from slurmgpu.training.formats.rows import Row, opened, part, positive, rows_at_end, rows_in, whole
from slurmgpu.training.formats.run_files import ORDERLY

__all__ = ["Line", "Series", "Training", "read_rows", "read_series", "read_training", "training_of"]

LARGEST = 64 << 20
"""Bytes that are read; of a longer file the end, where what counts stands."""


@dataclass(frozen=True)
class Training:
    """A training by its metrics; None is "not measured"."""

    steps: int | None = None
    """The newest step."""
    total_steps: int | None = None
    losses: tuple[tuple[int, float], ...] = ()
    """Step and loss of each line that counts, in the order of the steps."""
    loader_wait: float | None = None
    """Part of the step time spent waiting for a batch, 0 to 1, over all steps that count."""
    kept_seconds: float | None = None
    """Time of the steps that count: those that no later start repeated."""
    repeated_seconds: float = 0.0
    """Time of the steps that a later start repeated."""
    steps_of_last_start: int | None = None
    seconds_of_last_start: float | None = None
    """From its first line to its newest."""
    world_size: int | None = None
    workers: int | None = None
    """Loader workers of each process, where the settings name a number."""
    stopped: bool = False
    """True if it stopped in good order, with everything saved."""
    saved_seconds: float = 0.0
    """Time of the steps that count and that the newest checkpoint has."""
    whole: bool = True
    """True if all of it was read, and is the job's alone."""


def read_training(run_dir: Path) -> Training | None:
    """Return the training in a run directory; None where there is none."""
    found = read_rows(run_dir)
    return None if found is None else training_of(found[0], whole_file=found[1])


def read_rows(run_dir: Path) -> tuple[Iterator[MetricsRow], bool] | None:
    """Return the rows of a run directory's metrics, and whether they are all; None where there is no such file."""
    try:
        with opened(run_dir / METRICS_FILE, METRICS_SCHEMA) as file:
            text, all_of_it = file.end(LARGEST), file.size <= LARGEST
    except OSError:
        return None
    return metrics_rows(rows_in(text, METRICS_SCHEMA)), all_of_it


def training_of(rows: Iterable[MetricsRow], *, whole_file: bool = True) -> Training | None:
    """Add the rows up."""
    rows = list(rows)
    intervals = list(intervals_of(rows))
    total: int | None = None
    stopped = False
    restart, at, saved = -1, 0, 0
    first_time = last_time = None
    resumed = 0
    begun: Row = {}
    for row in rows:
        if row.restart > restart:
            restart, first_time, resumed, at = row.restart, row.time, row.step, row.step
        last_time, stopped = row.time, False
        if row.kind == "start":
            at, resumed, begun = row.step, row.step, row.values
            total = whole(row.values.get("total_steps")) or total
        elif row.kind == "train" and row.step > at:
            at = row.step
        elif row.kind == "end":
            stopped = row.values.get("reason") in ORDERLY
        elif row.kind == "checkpoint":
            saved = row.step
    if restart < 0:
        return None
    kept = kept_intervals(intervals)
    known = [one for one in kept if one.waited is not None and one.seconds > 0]
    seconds = sum(one.seconds for one in known)
    return Training(
        steps=at,
        total_steps=total,
        losses=tuple((one.last, one.loss) for one in kept if one.loss is not None),
        loader_wait=sum(one.waited or 0.0 for one in known) / seconds if seconds else None,
        kept_seconds=sum(one.seconds for one in kept) if kept else None,
        repeated_seconds=sum(one.seconds for one in intervals) - sum(one.seconds for one in kept),
        steps_of_last_start=at - resumed,
        seconds_of_last_start=last_time - first_time
        if last_time is not None and first_time is not None
        else None,
        world_size=whole(begun.get("world_size")),
        workers=whole(part(begun, "settings").get("workers")),
        stopped=stopped,
        saved_seconds=sum(one.seconds * one.share_up_to(saved) for one in kept),
        whole=whole_file,
    )


Line = list[tuple[float, float]]
"""Seconds since the first sample, and a value."""

_LARGEST = 8 << 20
_MOST_FILES = 64
_MOST_GPUS = 16


@dataclass
class Series:
    """Samples by the name of their GPU, `node1:0`, or node, `node1`."""

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
