"""A bench as tables, plots and one page that needs nothing else; its files, and its JSON.

The networks' times are laid out as by Shi et al. (2016, arXiv 1608.07249): seconds per mini-batch.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.amounts import amount, count, percent, size_text
from slurmgpu.plots import Line, document, plot, table, text
from slurmgpu.runs.bench.results import (
    Part,
    Results,
    Table,
    digits,
    machine_line,
    median,
    missing,
    slow,
    sum_in_words,
)
from slurmgpu.runs.bench.verdict import FULL, judge, ratios
from slurmgpu.training.formats.rows import Row, positive, whole

__all__ = [
    "PUBLISHED", "SOURCE", "Figure", "facts", "figures", "page", "page_of_parts", "tables", "write_files",
]  # fmt: skip

SOURCE = "Shi et al. (2016), arXiv 1608.07249, Torch"
_PUBLISHED_PLACES = ("published: CPU", "published: GTX 1080")
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "FCN-S": (0.382, 0.031),
    "AlexNet-S": (1.090, 0.023),
    "ResNet-50": (3.683, 0.144),
    "FCN-R": (0.366, 0.016),
    "AlexNet-R": (3.940, 0.043),
    "ResNet-56": (2.560, 0.101),
    "LSTM": (3.260, 0.324),
}
"""Figures of the paper for Torch: the best of its server's CPU threads, and one GTX 1080."""
_TITLES = {"networks": "Seven networks", "node": "Node", "task": "A training"}
_FOLDER_FIGURES = (
    ("large file written", "write_mb_per_s", "MB/s"),
    ("large file read", "read_mb_per_s", "MB/s"),
    ("small files made", "made_per_s", "/s"),
    ("small files looked at", "looked_at_per_s", "/s"),
    ("small files removed", "removed_per_s", "/s"),
)
_TRY_HEAD = ("What", "Setting", "Samples/s", "Step", "Waits", "Comm.", "Memory")
_ORDER = ("processes", "batch_size", "workers", "precision", "tf32", "channels_last", "compile")
_SHOWN = {
    "base": ("processes", "batch_size"),
    "batch": ("batch_size",),
    "workers": ("workers",),
    "precision": ("precision", "tf32", "channels_last", "compile"),
    "scaling": ("processes", "batch_size"),
}
_IDEAL = "nothing lost"
_THREADS = re.compile(r"(\d+) threads?")
_OF_TRIES = (
    ("Samples/s by micro-batch", "batch", None, "batch_size", "samples at a time"),
    ("Samples/s by workers", "workers", None, "workers", "workers"),
    ("Samples/s by processes, the same batch in all", "scaling", "whole", "processes", "processes"),
)


def tables(kind: str, results: Results, *, long: bool = False) -> list[Table]:
    """Return the tables of what was measured; ``long``: with the same columns on every machine."""
    if kind == "node":
        head = ("What", "Where", "Measured", "Published peak", "Reached")
        return [Table("table", "Measured, beside the published peak", head, list(_node_lines(results)), 2)]
    if kind == "task":
        return [Table("table", "What was tried", _TRY_HEAD, list(_try_lines(results)), 2), *ratios(results)]
    title = "Seconds per mini-batch, median"
    times: dict[str, dict[str, Row]] = {}
    for row in results.rows:
        times.setdefault(str(row.get("network")), {})[_place_of(row)] = row
    if long:
        lines = [
            (name, place, _seconds(row, "step"))
            for name, places in times.items()
            for place, row in places.items()
        ]
        return [Table("table", title, ("Network", "Where", "Seconds"), lines, 2)]
    every = list(dict.fromkeys(_place_of(row) for row in results.rows))
    rows = []
    for name, places in times.items():
        here = [places.get(place, {}) for place in every]
        cells = [str(row["why"]) if row.get("why") else _seconds(row, "step") for row in here]
        *_, last = places.values()
        published = map(_three_digits, PUBLISHED.get(name, (None, None)))
        rows.append([name, str(whole(last.get("batch"))), *cells, *published])
    return [Table("table", title, ("Network", "Mini-batch", *every, *_PUBLISHED_PLACES), rows, 1)]


def _place_of(row: Row) -> str:
    """Return where it was measured: `2 threads`, `GPU 0 bf16`."""
    threads = whole(row.get("threads"))
    if threads is not None:
        return f"{threads} thread{'' if threads == 1 else 's'}"
    return f"GPU {row.get('gpu')} {row.get('precision')}"


def _seconds(row: Row, key: str) -> str:
    return _three_digits(median(row, key))


def _three_digits(value: float | None) -> str:
    """Return seconds as the paper has them."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _node_lines(results: Results) -> Iterator[Sequence[str]]:
    """Yield a line for each figure; a peak that is not known is `-`."""
    for row in results.rows:
        what, why = row.get("what"), f"not measured: {row.get('why')}"
        if what == "product":
            rate, peak = median(row, "tflops"), positive(row.get("peak_tflops"))
            reached = percent(rate / peak) if rate is not None and peak else "-"
            published = "-" if peak is None else _rate(peak, "TFLOP/s")
            name = f"matrix product, {row.get('type')}"
            yield name, str(row.get("device")), _rate(rate, "TFLOP/s"), published, reached
        elif what == "copy":
            where = f"{row.get('from')} to {row.get('to')}"
            yield "copy", where, _rate(median(row, "gb_per_s"), "GB/s"), "-", "-"
        elif what == "reduction":
            figure = why if "why" in row else _rate(median(row, "gb_per_s"), "GB/s")
            yield sum_in_words(row), str(row.get("backend", "-")), figure, "-", "-"
        elif what == "folder":
            place = str(row.get("folder"))
            for name, key, unit in _FOLDER_FIGURES:
                if (rate := positive(row.get(key))) is not None:
                    yield name, place, _rate(rate, unit), "-", "-"
            if "why" in row:
                yield "folder", place, why, "-", "-"


def _rate(rate: float | None, unit: str) -> str:
    return "unknown" if rate is None else f"{amount(rate)} {unit}"


def _try_lines(results: Results) -> Iterator[Sequence[str]]:
    """Yield a line for each try; why one did not run is a sentence of the verdict."""
    same = ("processes", "batch_size", "samples_per_second", "why")
    bases = [[row.get(key) for key in same] for row in results.of("base")]
    for row in results.rows:
        what = str(row.get("what"))
        if what == "scaling" and [row.get(key) for key in same] in bases:
            continue  # one process, which is the base
        setting = ", ".join(f"{key} {row[key]}" for key in _SHOWN.get(what, _ORDER) if key in row)
        if row.get("how") == "dp":
            setting = f"dp, gpus {row.get('gpus')}, batch_size {row.get('batch_size')}"
        if row.get("how") == "fsdp2":
            setting = f"fsdp2, {setting}"
        if "why" in row:
            yield what, setting, "no memory" if row["why"] == FULL else "failed", "-", "-", "-", "-"
            continue
        rate, step, peak = (
            positive(row.get(key)) for key in ("samples_per_second", "step_seconds", "peak_bytes")
        )
        yield (
            what,
            setting,
            digits(rate) if rate else "unknown",
            f"{step:.3g} s" if step else "unknown",
            percent(positive(row.get("waits_for_data"))),
            percent(positive(row["communication"])) if "communication" in row else "-",
            size_text(peak) if peak else "unknown",
        )


class Figure(NamedTuple):
    """Lines by their names over one axis."""

    title: str
    lines: Mapping[str, Line]
    down: str
    across: str

    def svg(self) -> str:
        """Return the plot for a page."""
        return plot(
            self.title,
            self.lines,
            down=self.down,
            across=self.across,
            spelled=digits,
            along=lambda value: f"{value:g}",
        )


def figures(kind: str, results: Results) -> list[Figure]:
    """Return the plots of what one machine measured; a line needs two points, and a plot a line."""
    found = []
    if kind == "networks":
        gains: dict[str, list[tuple[float, float]]] = {}
        for row in results.rows:
            match, seconds = _THREADS.fullmatch(_place_of(row)), median(row, "step")
            if match and seconds is not None:
                gains.setdefault(str(row.get("network")), []).append((float(match[1]), seconds))
        lines = {name: [(x, line[0][1] / y) for x, y in line] for name, line in gains.items()}
        found.append(Figure("Speed-up by threads", lines, "times as fast as on the fewest", "threads"))
    if kind == "task":
        for title, what, how, key, across in _OF_TRIES:
            found.append(Figure(title, {"samples/s": _line(results, what, how, key)}, "samples/s", across))
        found.append(_scaling_figure(results))
    return [one for one in found if any(len(line) > 1 for line in one.lines.values())]


def _scaling_figure(results: Results) -> Figure:
    """Return each way to use several GPUs, beside as much as nothing lost would give."""
    base = _line(results, "base", None, "processes")
    ways = {"DDP": ("each", "processes"), "FSDP2": ("fsdp2", "processes"), "DataParallel": ("dp", "gpus")}
    lines = {name: _line(results, "scaling", how, key) for name, (how, key) in ways.items()}
    lines = {name: line if name == "DDP" else [*base, *line] for name, line in lines.items() if line}
    most = max((x for line in lines.values() for x, _ in line), default=1.0)
    for x, y in base:
        if most > x:
            lines[_IDEAL] = [(x, y), (most, y * most / x)]
    title = "Samples/s by GPUs or processes, the same micro-batch in each"
    return Figure(title, lines, "samples/s", "GPUs or processes")


def _line(results: Results, what: str, how: str | None, key: str) -> list[tuple[float, float]]:
    rows = [row for row in results.of(what) if row.get("how") == how]
    points = [(positive(row.get(key)), positive(row.get("samples_per_second"))) for row in rows]
    return sorted((x, y) for x, y in points if x is not None and y is not None)


def page(kind: str, results: Results) -> str:
    """Return the page of what one machine measured."""
    title = f"{_TITLES[kind]} on {results.machine.get('node')}"
    return document(title, [f"<h1>{text(title)}</h1>", *_of_machine(kind, results)])


def page_of_parts(kind: str, parts: Sequence[Part]) -> str:
    """Return the page of a bench in jobs of its own: a section for each, after what is missing and who is slow."""
    title = f"{_TITLES[kind]}: {count(len(parts), 'job')}"
    body = [f"<h1>{text(title)}</h1>"]
    body += [f"<p>{text(sentence)}.</p>" for sentence in (*slow(parts), *missing(parts))]
    for part in parts:
        body.append(f"<h2>{text(part.job.on)}</h2>")
        body += _of_machine(kind, part.results) if part.results.machine else [f"<p>{text(part.state)}</p>"]
    return document(title, body)


def _of_machine(kind: str, results: Results) -> Iterator[str]:
    yield f'<p class="soft">{text(machine_line(results))}</p>'
    if not results.whole:
        yield "<p>The measuring was cut short: rows are missing.</p>"
    if kind == "task":
        verdict = judge(results)
        for sentence in verdict.sentences:
            yield f"<p>{text(sentence[:1].upper() + sentence[1:])}.</p>"
        if verdict.proposals:
            items = (
                f"<li><code>{text(f'{one.key}: {one.value}')}</code> <span>{text(one.why)}</span></li>"
                for one in verdict.proposals
            )
            yield f'<h3>What follows</h3><ul class="next">{"".join(items)}</ul>'
    for one in tables(kind, results):
        yield _html(one)
        if one.note:
            yield f'<p class="soft">{text(one.note[:1].upper() + one.note[1:])}.</p>'
    if kind == "networks":
        yield f'<p class="soft">Published: {SOURCE}; other software on other machines.</p>'
    yield from (figure.svg() for figure in figures(kind, results))
    if kind == "networks":
        lines = [
            (
                str(row.get("network")),
                f"{row.get('threads')} threads"
                if "threads" in row
                else f"{row.get('device')} {row.get('precision')}",
                *(_seconds(row, key) for key in ("forward", "backward", "update", "step")),
                str(row.get("rounds", "-")),
            )
            for row in results.rows
        ]
        head = ("Network", "Where", "Forward", "Backward", "Update", "Step", "Times measured")
        yield _html(Table("parts", "Seconds of each part, median", head, lines, 2))


def _html(one: Table) -> str:
    at = one.numbers_from
    return table(one.title, one.head, [[*map(text, line[:at]), *line[at:]] for line in one.lines], at)


def facts(kind: str, results: Results) -> dict[str, object]:
    """Return what was measured and what follows, for JSON."""
    found: dict[str, object] = {"whole": results.whole, "machine": results.machine, "rows": results.rows}
    if kind == "networks":
        found["published"] = {"source": SOURCE, "places": _PUBLISHED_PLACES, "seconds": PUBLISHED}
    if kind == "task":
        verdict = judge(results)
        found["sentences"] = verdict.sentences
        found["proposals"] = [one._asdict() for one in verdict.proposals]
        keys = ("name", "title", "head", "lines", "note")
        found["ratios"] = [{key: getattr(one, key) for key in keys} for one in ratios(results)]
    return found


def write_files(folder: Path, kind: str, measured: Results | Sequence[Part]) -> None:
    """Write the page, and the tables as CSV; OSError where they cannot be written.

    The tables of several jobs are one below the other, with the job's name in the first column.
    """
    written: dict[str, list[Sequence[str]]] = {}
    if isinstance(measured, Results):
        html = page(kind, measured)
        written = {one.name: [one.head, *one.lines] for one in tables(kind, measured)}
    else:
        html = page_of_parts(kind, measured)
        for part in measured:
            on = part.job.on
            for one in tables(kind, part.results, long=True):
                written.setdefault(one.name, [("On", *one.head)]).extend((on, *line) for line in one.lines)
    (folder / "page.html").write_text(html, encoding="utf-8")
    for name, lines in written.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(lines)
