"""What a bench has measured: rows, networks, nodes, and the jobs of a bench on several places.

The networks' times are laid out as by Shi et al. (2016, arXiv 1608.07249): seconds per mini-batch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.amounts import amount, count, percent, size_text
from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import open_regular
from slurmgpu.training.formats.rows import Row, opened, part, positive, whole
from slurmgpu.training.formats.run_files import BENCH_SCHEMA

__all__ = [
    "JOBS",
    "KINDS",
    "NODE_HEAD",
    "PUBLISHED",
    "PUBLISHED_PLACES",
    "ROWS",
    "BenchJob",
    "Part",
    "Results",
    "Table",
    "digits",
    "is_busy",
    "jobs_in",
    "jobs_text",
    "machine_line",
    "median",
    "missing",
    "network_lines",
    "node_lines",
    "over",
    "part_of",
    "place_of",
    "read",
    "seconds",
    "slow",
    "times",
]


_LARGEST_RESULTS = 1 << 21
"""Bytes: several times what the longest bench writes; what is beyond it was not written by one, and is left unread."""


class Results(NamedTuple):
    """What one process measured on one machine."""

    machine: Row
    rows: list[Row]
    whole: bool
    """Whether it came to its end."""


def read(path: Path) -> Results:
    """Return the rows of a file; none of one that is not there yet."""
    machine: Row = {}
    rows: list[Row] = []
    whole = False
    try:
        with opened(path, BENCH_SCHEMA) as file:
            found = list(file.head(_LARGEST_RESULTS))
    except OSError:
        found = []
    for row in found:
        kind = row.get("kind")
        if kind == "machine":
            machine, rows, whole = (
                row,
                [],
                False,
            )  # a job that Slurm started again measures from the beginning
        elif kind == "end":
            whole = True
        else:
            rows.append(row)
    return Results(machine, rows, whole)


def median(row: Row, key: str) -> float | None:
    """Return the median of what was measured several times; None where it was not."""
    return positive(part(row, key).get("median"))


PUBLISHED_PLACES = ("published: CPU", "published: GTX 1080")
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "FCN-S": (0.382, 0.031),
    "AlexNet-S": (1.090, 0.023),
    "ResNet-50": (3.683, 0.144),
    "FCN-R": (0.366, 0.016),
    "AlexNet-R": (3.940, 0.043),
    "ResNet-56": (2.560, 0.101),
    "LSTM": (3.260, 0.324),
}
"""What the paper gives for Torch: the best of its server's CPU threads, and one GTX 1080."""


class Table(NamedTuple):
    """Seconds per mini-batch: a row a network, a column a place; None where it was not measured, or could not be."""

    places: list[str]
    batches: dict[str, int | None]
    seconds: dict[str, dict[str, float | None]]
    why: dict[tuple[str, str], str]
    """Why a network has no time at a place."""


def times(results: Results) -> Table:
    """Return the table of what was measured, in the order in which it was."""
    table = Table([], {}, {}, {})
    for row in results.rows:
        name, place = str(row.get("network")), place_of(row)
        if place not in table.places:
            table.places.append(place)
        table.batches[name] = whole(row.get("batch"))
        table.seconds.setdefault(name, {})[place] = median(row, "step")
        if "why" in row:
            table.why[name, place] = str(row["why"])
    return table


def network_lines(table: Table) -> Iterator[list[str]]:
    """Yield a line for each network: its name, its mini-batch, the time at each place, and the published ones."""
    for name, here in table.seconds.items():
        published = PUBLISHED.get(name, (None, None))
        measured = [table.why.get((name, place)) or seconds(here.get(place)) for place in table.places]
        yield [name, str(table.batches[name]), *measured, *map(seconds, published)]


def place_of(row: Row) -> str:
    """Return where it was measured: `2 threads`, `GPU 0 bf16`."""
    threads = whole(row.get("threads"))
    if threads is not None:
        return f"{threads} thread{'' if threads == 1 else 's'}"
    return f"GPU {row.get('gpu')} {row.get('precision')}"


def seconds(value: float | None) -> str:
    """In three digits, as the paper has them."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


NODE_HEAD = ("What", "Where", "Measured", "Published peak", "Reached")


def node_lines(results: Results) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a line for each figure; a peak that is not known is `-`."""
    for row in results.rows:
        what = row.get("what")
        if what == "product":
            yield _product(row)
        elif what == "copy":
            rate = median(row, "gb_per_s")
            yield ("copy", f"{row.get('from')} to {row.get('to')}", _rate(rate, "GB/s"), "-", "-")
        elif what == "reduction":
            yield _reduction(row)
        elif what == "folder":
            yield from _folder(row)


def _product(row: Row) -> tuple[str, str, str, str, str]:
    rate, peak = median(row, "tflops"), positive(row.get("peak_tflops"))
    reached = percent(rate / peak) if rate is not None and peak else "-"
    what = f"matrix product, {row.get('type')}"
    published = "-" if peak is None else _rate(peak, "TFLOP/s")
    return (what, str(row.get("device")), _rate(rate, "TFLOP/s"), published, reached)


def _reduction(row: Row) -> tuple[str, str, str, str, str]:
    rate = _rate(median(row, "gb_per_s"), "GB/s")
    return (
        over(row),
        str(row.get("backend", "-")),
        f"not measured: {row['why']}" if "why" in row else rate,
        "-",
        "-",
    )


def over(row: Row) -> str:
    """Return which sum over processes it is, in words."""
    nodes, size = row.get("nodes"), positive(row.get("bytes"))
    on = "" if nodes == 1 else f" on {nodes} nodes"
    return f"all-reduce over {row.get('processes')} processes{on}" + (f", {size_text(size)}" if size else "")


def _folder(row: Row) -> Iterator[tuple[str, str, str, str, str]]:
    place = str(row.get("folder"))
    for name, key, unit in (
        ("large file written", "write_mb_per_s", "MB/s"),
        ("large file read", "read_mb_per_s", "MB/s"),
        ("small files made", "made_per_s", "/s"),
        ("small files looked at", "looked_at_per_s", "/s"),
        ("small files removed", "removed_per_s", "/s"),
    ):
        rate = positive(row.get(key))
        if rate is not None:
            yield (name, place, _rate(rate, unit), "-", "-")
    if "why" in row:
        yield ("folder", place, f"not measured: {row['why']}", "-", "-")


def _rate(rate: float | None, unit: str) -> str:
    return "unknown" if rate is None else f"{amount(rate)} {unit}"


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
    """Return the file that says which jobs a bench has."""
    return (
        json.dumps({"schema": BENCH_SCHEMA, "kind": kind, "jobs": [one._asdict() for one in jobs]}, indent=2)
        + "\n"
    )


def jobs_in(folder: Path) -> tuple[str, list[BenchJob]]:
    """Return the kind of the bench in a folder, and its jobs; InvalidInput where it is no bench in jobs of its own."""
    try:
        with open_regular(folder / JOBS) as file:
            document = json.loads(file.read(_LARGEST_DOCUMENT))
        if document["schema"] != BENCH_SCHEMA:
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
    """Return what the job's file has by now."""
    results = read(Path(job.run_dir) / ROWS)
    return Part(job, results, state, ended or results.whole, lost and not results.whole)


def missing(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a sentence for each job that did not measure all."""
    for one in parts:
        if one.results.whole:
            continue
        has = "nothing was measured" if not one.results.rows else "it did not measure all"
        if not one.ended:
            has = "nothing is measured yet" if not one.results.rows else "it is not done yet"
        yield f"{one.job.on}: {has} ({one.state})"


def slow(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a sentence for each figure by which a node falls behind the others of its kind."""
    figures: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for one in parts:
        for what, rate in _figures(one.results):
            figures.setdefault((_kind(one.results), what), []).append(
                (str(one.results.machine.get("node")), rate)
            )
    for (_, what), found in figures.items():
        if len(found) < _FEWEST:
            continue
        usual = statistics.median(rate for _, rate in found)
        for node, rate in found:
            if rate < _SLOW * usual:
                yield f"{node} is slow: {what}, {percent(rate / usual)} of the median of {len(found)} nodes"


def _kind(results: Results) -> str:
    """Return what a node is made of: those of one kind are compared."""
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


_BUSY = 0.5
"""Processes that run or wait for a CPU, for each CPU: from there on, others slow down what is measured."""


def digits(rate: float) -> str:
    """Return a number of samples a second: whole from 100 on, three digits below."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def machine_line(results: Results) -> str:
    """Return the node, its processors and the software, in a line."""
    machine = results.machine
    if not machine:
        return "nothing was measured"
    gpus = machine.get("gpus")
    names = (
        [str(one.get("name")) for one in gpus if isinstance(one, Mapping)] if isinstance(gpus, list) else []
    )
    processors = ", ".join(
        [f"{count(whole(machine.get('cpus')) or 0, 'CPU')} ({machine.get('cpu') or 'of an unknown model'})"]
        + [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    )
    return f"{machine.get('node')}: {processors}; torch {machine.get('torch')}; {machine.get('when')}"


def is_busy(results: Results) -> bool:
    """Return True if others used the machine as the measuring began."""
    load, cpus = positive(results.machine.get("load")), whole(results.machine.get("cpus"))
    return load is not None and bool(cpus) and load / (cpus or 1) > _BUSY
