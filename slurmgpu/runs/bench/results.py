"""Results of a bench: the rows of one machine, and the jobs of a bench on several places."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.amounts import count, percent, size_text
from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import open_regular
from slurmgpu.training.formats.rows import Row, opened, part, positive, whole
from slurmgpu.training.formats.run_files import BENCH_SCHEMA

__all__ = [
    "ASKED", "JOBS", "KINDS", "ROWS", "BenchJob", "Part", "Results", "Table", "asked_in", "digits", "is_busy",
    "jobs_in", "jobs_text", "machine_line", "median", "missing", "part_of", "read_results", "slow",
    "sum_in_words",
]  # fmt: skip

ROWS, JOBS, ASKED = "rows.jsonl", "jobs.json", "asked.json"
KINDS = ("networks", "node", "task")
_LARGEST_RESULTS = 1 << 21
"""Bytes: several times what the longest bench writes; what is beyond it was not written by one, and is left unread."""
_LARGEST_DOCUMENT = 1 << 20
_SLOW = 0.85
"""Of what is usual among the others: a node that does not reach it is named."""
_FEWEST = 3
"""Among two, nobody can tell which is the usual one."""
_BUSY = 0.5
"""Processes that run or wait for a CPU, for each CPU: from there on, others slow down what is measured."""


class Table(NamedTuple):
    """A table of what was found; ``note`` is a remark on it, or empty."""

    name: str
    """Of its file, without an ending."""
    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    numbers_from: int
    """The first column of numbers, which stand to the right."""
    note: str = ""


class Results(NamedTuple):
    """Measurements of one process on one machine."""

    machine: Row
    rows: list[Row]
    whole: bool
    """True if it came to its end."""

    def of(self, what: str) -> list[Row]:
        """Return the rows of one part."""
        return [row for row in self.rows if row.get("what") == what]

    @property
    def gpus(self) -> list[Row]:
        """Return the machine's GPUs."""
        gpus = self.machine.get("gpus")
        return [one for one in gpus if isinstance(one, Mapping)] if isinstance(gpus, list) else []


def read_results(path: Path) -> Results:
    """Return the rows of a file; none of one that is not there yet."""
    try:
        with opened(path, BENCH_SCHEMA) as file:
            found = list(file.head(_LARGEST_RESULTS))
    except OSError:
        found = []
    results = Results({}, [], False)
    for row in found:
        if row.get("kind") == "machine":  # a job that Slurm started again measures from the beginning
            results = Results(row, [], False)
        elif row.get("kind") == "end":
            results = results._replace(whole=True)
        else:
            results.rows.append(row)
    return results


def median(row: Row, key: str) -> float | None:
    """Return the median of what was measured several times; None where it was not."""
    return positive(part(row, key).get("median"))


def digits(rate: float) -> str:
    """Return a number of samples a second: whole from 100 on, three digits below."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def machine_line(results: Results) -> str:
    """Return the node, its processors and the software, in a line."""
    machine, names = results.machine, [str(one.get("name")) for one in results.gpus]
    if not machine:
        return "nothing was measured"
    cpus = f"{count(whole(machine.get('cpus')) or 0, 'CPU')} ({machine.get('cpu') or 'of an unknown model'})"
    there = ", ".join([cpus, *(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))])
    return f"{machine.get('node')}: {there}; torch {machine.get('torch')}; {machine.get('when')}"


def is_busy(results: Results) -> bool:
    """Return True if others used the machine as the measuring began."""
    load, cpus = positive(results.machine.get("load")), whole(results.machine.get("cpus"))
    return load is not None and bool(cpus) and load / (cpus or 1) > _BUSY


def sum_in_words(row: Row) -> str:
    """Return which sum over processes it is, in words."""
    nodes, size = row.get("nodes"), positive(row.get("bytes"))
    on = "" if nodes == 1 else f" on {nodes} nodes"
    return f"all-reduce over {row.get('processes')} processes{on}" + (f", {size_text(size)}" if size else "")


class BenchJob(NamedTuple):
    """One job of a bench."""

    on: str
    """The place that it was to measure, in words: ``a100:2, 1 node``."""
    run_dir: str


class Part(NamedTuple):
    """Measurements of one job."""

    job: BenchJob
    results: Results
    state: str
    """The job's end, in words."""
    ended: bool
    """True if nothing more will come."""


def jobs_text(kind: str, jobs: Sequence[BenchJob]) -> str:
    """Return the file that says which jobs a bench has."""
    document = {"schema": BENCH_SCHEMA, "kind": kind, "jobs": [one._asdict() for one in jobs]}
    return json.dumps(document, indent=2) + "\n"


def jobs_in(folder: Path) -> tuple[str, list[BenchJob]]:
    """Return the kind of the bench in a folder, and its jobs; InvalidInput where it is no bench in jobs of its own."""
    try:
        with open_regular(folder / JOBS) as file:
            document = json.loads(file.read(_LARGEST_DOCUMENT))
        jobs = [BenchJob(str(one["on"]), str(one["run_dir"])) for one in document["jobs"]]
        if document["schema"] != BENCH_SCHEMA or document["kind"] not in KINDS or not jobs:
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


def asked_in(run_dir: Path) -> Mapping[str, Any]:
    """Return what a job was to measure; empty if it is not known."""
    try:
        found = json.loads((run_dir / ASKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def part_of(job: BenchJob, state: str, *, ended: bool = False) -> Part:
    """Return what the job's file has by now."""
    results = read_results(Path(job.run_dir) / ROWS)
    return Part(job, results, state, ended or results.whole)


def missing(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a sentence for each job that did not measure all."""
    for one in parts:
        if not one.results.whole:
            has = "nothing was measured" if not one.results.rows else "it did not measure all"
            if not one.ended:
                has = "nothing is measured yet" if not one.results.rows else "it is not done yet"
            yield f"{one.job.on}: {has} ({one.state})"


def slow(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a sentence for each figure by which a node falls behind the others that are made of the same."""
    figures: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for one in parts:
        machine = one.results.machine
        made_of = json.dumps([machine.get("cpu"), machine.get("cpus"), machine.get("gpus")], sort_keys=True)
        for what, rate in _figures(one.results):
            if rate is not None:
                figures.setdefault((made_of, what), []).append((str(machine.get("node")), rate))
    for (_, what), found in figures.items():
        usual = statistics.median(rate for _, rate in found)
        for node, rate in found:
            if len(found) >= _FEWEST and rate < _SLOW * usual:
                yield f"{node} is slow: {what}, {percent(rate / usual)} of the median of {len(found)} nodes"


def _figures(results: Results) -> Iterator[tuple[str, float | None]]:
    for row in results.rows:
        what = row.get("what")
        if what == "product":
            yield f"matrix product, {row.get('type')} on {row.get('device')}", median(row, "tflops")
        elif what == "copy":
            yield f"copy from {row.get('from')} to {row.get('to')}", median(row, "gb_per_s")
        elif what == "reduction":
            yield sum_in_words(row), median(row, "gb_per_s")
        elif what == "folder":
            for key, words in (("write_mb_per_s", "writing to"), ("read_mb_per_s", "reading from")):
                yield f"{words} {row.get('folder')}", positive(row.get(key))
