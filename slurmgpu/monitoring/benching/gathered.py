"""A bench in jobs of their own: which they are, what each has measured so far, and what is missing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.regular import open_regular
from slurmgpu.monitoring.benching.node import over
from slurmgpu.monitoring.benching.results import SCHEMA, Results, median, read
from slurmgpu.monitoring.json_rows import Row, positive
from slurmgpu.monitoring.reporting.wording import percent

__all__ = ["JOBS", "KINDS", "ROWS", "BenchJob", "Part", "jobs_in", "jobs_text", "missing", "part_of", "slow"]

ROWS = "rows.jsonl"
JOBS = "jobs.json"
KINDS = ("networks", "node", "task")
_LARGEST_DOCUMENT = 1 << 20
_SLOW = 0.85
"""Of what is usual among the others: a node that does not reach it is named."""
_FEWEST = 3
"""Among two, nobody can tell which is the usual one."""


class BenchJob(NamedTuple):
    """One job of a bench."""

    on: str
    """What it was to measure, in words: ``a100:2, 1 node``."""
    run_dir: str


class Part(NamedTuple):
    """What one job has measured."""

    job: BenchJob
    results: Results
    state: str
    """What became of the job, in words."""
    ended: bool
    """Whether nothing more will come."""
    lost: bool
    """Whether Slurm does not know the job: it may have just been submitted, or long be forgotten."""


def jobs_text(kind: str, jobs: Sequence[BenchJob]) -> str:
    """The file that says which jobs a bench has."""
    return (
        json.dumps({"schema": SCHEMA, "kind": kind, "jobs": [one._asdict() for one in jobs]}, indent=2) + "\n"
    )


def jobs_in(folder: Path) -> tuple[str, list[BenchJob]]:
    """The kind of the bench in a folder, and its jobs; InvalidInput where it is no bench in jobs of its own."""
    try:
        with open_regular(folder / JOBS) as file:
            document = json.loads(file.read(_LARGEST_DOCUMENT))
        if document["schema"] != SCHEMA:
            raise ValueError(document["schema"])
        jobs = [BenchJob(str(one["on"]), str(one["run_dir"])) for one in document["jobs"]]
        if document["kind"] not in KINDS or not jobs:
            raise ValueError(document["kind"])
        return document["kind"], jobs
    except OSError as error:
        raise InvalidInput(
            f"{folder / JOBS} cannot be read: {error.strerror}",
            hint="name the folder that slurmgpu bench --submit printed",
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"{folder / JOBS} is no list of jobs of this version's", hint="measure again"
        ) from None


def part_of(job: BenchJob, state: str, *, ended: bool = False, lost: bool = False) -> Part:
    """What the job's file has by now."""
    results = read(Path(job.run_dir) / ROWS)
    return Part(job, results, state, ended or results.whole, lost and not results.whole)


def missing(parts: Sequence[Part]) -> Iterator[str]:
    """A sentence for each job that did not measure all."""
    for part in parts:
        if part.results.whole:
            continue
        has = "nothing was measured" if not part.results.rows else "it did not measure all"
        if not part.ended:
            has = "nothing is measured yet" if not part.results.rows else "it is not done yet"
        yield f"{part.job.on}: {has} ({part.state})"


def slow(parts: Sequence[Part]) -> Iterator[str]:
    """A sentence for each figure by which a node falls behind the others of its kind."""
    figures: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for part in parts:
        for what, rate in _figures(part.results):
            figures.setdefault((_kind(part.results), what), []).append(
                (str(part.results.machine.get("node")), rate)
            )
    for (_, what), found in figures.items():
        if len(found) < _FEWEST:
            continue
        usual = statistics.median(rate for _, rate in found)
        for node, rate in found:
            if rate < _SLOW * usual:
                yield f"{node} is slow: {what}, {percent(rate / usual)} of the median of {len(found)} nodes"


def _kind(results: Results) -> str:
    """What a node is made of: those of one kind are compared."""
    gpus = results.machine.get("gpus")
    return json.dumps([results.machine.get("cpu"), results.machine.get("cpus"), gpus], sort_keys=True)


def _figures(results: Results) -> Iterator[tuple[str, float]]:
    for row in results.rows:
        for name, rate in _rates(row):
            if rate is not None:
                yield name, rate


def _rates(row: Row) -> Iterator[tuple[str, float | None]]:
    what = row.get("what")
    if what == "product":
        yield f"matrix product, {row.get('type')} on {row.get('device')}", median(row, "tflops")
    elif what == "copy":
        yield f"copy from {row.get('from')} to {row.get('to')}", median(row, "gb_per_s")
    elif what == "reduction":
        yield over(row), median(row, "gb_per_s")
    elif what == "folder":
        for key, words in (("write_mb_per_s", "writing to"), ("read_mb_per_s", "reading from")):
            yield f"{words} {row.get('folder')}", positive(row.get(key))
