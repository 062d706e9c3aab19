"""A bench as one page that needs nothing else: its tables, its plots, the tries of a training; plots as PNG, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.amounts import count, percent, size_text
from slurmgpu.plots import Line, document, plot, table, text
from slurmgpu.runs.bench.results import (
    NODE_HEAD,
    PUBLISHED_PLACES,
    Part,
    Results,
    digits,
    machine_line,
    median,
    missing,
    network_lines,
    node_lines,
    seconds,
    slow,
    times,
)
from slurmgpu.runs.bench.verdict import FULL, judge, ratios
from slurmgpu.training.formats.rows import Row, positive

__all__ = ["TRY_HEAD", "Figure", "figures", "page", "page_of_parts", "svg", "try_lines", "write_png"]


_MOST_TICKS = 12
_IDEAL = "nothing lost"
_THREADS = re.compile(r"(\d+) threads?")
_OF_TRIES = (
    ("Samples/s by micro-batch", "batch", None, "batch_size", "samples at a time"),
    ("Samples/s by workers", "workers", None, "workers", "workers"),
    ("Samples/s by processes, the same batch in all", "scaling", "whole", "processes", "processes"),
)


class Figure(NamedTuple):
    """Lines by their names over one axis."""

    title: str
    lines: Mapping[str, Line]
    down: str
    across: str


def figures(kind: str, results: Results) -> list[Figure]:
    """Return the plots of what one machine measured; a line needs two points, and a plot a line."""
    found = {"networks": _of_networks, "task": _of_tries}[kind](results) if kind != "node" else []
    return [one for one in found if any(len(line) > 1 for line in one.lines.values())]


def _of_networks(results: Results) -> list[Figure]:
    gains: dict[str, Line] = {}
    for name, here in times(results).seconds.items():
        points = [(_THREADS.fullmatch(place), value) for place, value in here.items()]
        line = [(float(match[1]), value) for match, value in points if match and value is not None]
        gains[name] = [(threads, line[0][1] / value) for threads, value in line] if line else []
    return [Figure("Speed-up by threads", gains, "times as fast as on the fewest", "threads")]


def _of_tries(results: Results) -> list[Figure]:
    found = []
    for title, what, how, key, across in _OF_TRIES:
        line = _line(results, what, how, key)
        found.append(Figure(title, {"samples/s": line}, "samples/s", across))
    return [*found, _of_scaling(results)]


def _of_scaling(results: Results) -> Figure:
    """Return each way to use several GPUs, beside as much as nothing lost would give."""
    lines: dict[str, Line] = {}
    for name, how, key in (
        ("DDP", "each", "processes"),
        ("FSDP2", "fsdp2", "processes"),
        ("DataParallel", "dp", "gpus"),
    ):
        line = _line(results, "scaling", how, key)
        if how != "each" and line:
            line = [*_line(results, "base", None, "processes"), *line]
        lines[name] = line
    most = max((x for line in lines.values() for x, _ in line), default=1.0)
    for x, y in _line(results, "base", None, "processes"):
        lines[_IDEAL] = [(x, y), (most, y * most / x)] if most > x else []
    lines = {name: line for name, line in lines.items() if line}
    return Figure(
        "Samples/s by GPUs or processes, the same micro-batch in each",
        lines,
        "samples/s",
        "GPUs or processes",
    )


def _line(results: Results, what: str, how: str | None, key: str) -> Line:
    rows = [row for row in results.rows if row.get("what") == what and row.get("how") == how]
    points = [(positive(row.get(key)), positive(row.get("samples_per_second"))) for row in rows]
    return sorted((x, y) for x, y in points if x is not None and y is not None)


def svg(figure: Figure) -> str:
    """Return the plot for a page."""
    return plot(
        figure.title,
        figure.lines,
        down=figure.down,
        across=figure.across,
        spelled=digits,
        along=lambda value: f"{value:g}",
    )


def write_png(path: Path, of: Sequence[Figure]) -> bool:
    """Draw the plots below each other into one file; False where there are none, or matplotlib is not installed."""
    if not of:
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        return False
    drawing = Drawing(figsize=(7.0, 3.0 * len(of)), dpi=150, layout="constrained")
    FigureCanvasAgg(drawing)
    for axes, figure in zip(drawing.subplots(len(of), squeeze=False)[:, 0], of, strict=True):
        for name, line in figure.lines.items():
            if len(line) > 1:
                style = {"color": "gray", "linestyle": "--"} if name == _IDEAL else {"marker": "o"}
                axes.plot(*zip(*line, strict=True), label=name, **style)
        axes.set(title=figure.title, xlabel=figure.across, ylabel=figure.down)
        points = [point for line in figure.lines.values() for point in line]
        axes.set_ylim(0, 1.08 * max(y for _, y in points))
        if len(places := sorted({x for x, _ in points})) <= _MOST_TICKS:
            axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.grid(alpha=0.3)
        if len(figure.lines) > 1:
            axes.legend(fontsize="small")
    drawing.savefig(path)
    return True


_PARTS = ("forward", "backward", "update", "step")


_TITLES = {"networks": "Seven networks", "node": "Node", "task": "A training"}


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
    yield from {"networks": _networks, "node": _node, "task": _task}[kind](results)


def _networks(results: Results) -> Iterator[str]:
    found = times(results)
    rows = [[text(name), *cells] for name, *cells in network_lines(found)]
    heads = ("Network", "Mini-batch", *found.places, *PUBLISHED_PLACES)
    yield table("Seconds per mini-batch, median", heads, rows, 1)
    yield (
        '<p class="soft">Published: Shi et al. (2016), arXiv 1608.07249, Torch; other software on other machines.</p>'
    )
    yield from map(svg, figures("networks", results))
    parts = []
    for row in results.rows:
        cells = [seconds(median(row, part)) for part in _PARTS]
        where = (
            f"{row.get('threads')} threads"
            if "threads" in row
            else f"{row.get('device')} {row.get('precision')}"
        )
        parts.append([text(str(row.get("network"))), text(where), *cells, str(row.get("rounds", "-"))])
    heads = ("Network", "Where", "Forward", "Backward", "Update", "Step", "Times measured")
    yield table("Seconds of each part, median", heads, parts, 2)


def _node(results: Results) -> Iterator[str]:
    rows = [[text(what), text(where), *figures] for what, where, *figures in node_lines(results)]
    yield table("Measured, beside the published peak", NODE_HEAD, rows, 2)


def _task(results: Results) -> Iterator[str]:
    verdict = judge(results)
    for sentence in verdict.sentences:
        yield f"<p>{text(sentence[:1].upper() + sentence[1:])}.</p>"
    if verdict.proposals:
        items = (
            f"<li><code>{text(f'{one.key}: {one.value}')}</code> <span>{text(one.why)}</span></li>"
            for one in verdict.proposals
        )
        yield f'<h3>What follows</h3><ul class="next">{"".join(items)}</ul>'
    rows = [[text(what), text(setting), *figures] for what, setting, *figures in try_lines(results)]
    yield table("What was tried", TRY_HEAD, rows, 2)
    for one in ratios(results):
        yield table(one.title, one.head, [[text(name), *cells] for name, *cells in one.lines], 1)
        if one.note:
            yield f'<p class="soft">{text(one.note[:1].upper() + one.note[1:])}.</p>'
    yield from map(svg, figures("task", results))


TRY_HEAD = ("What", "Setting", "Samples/s", "Step", "Waits", "Comm.", "Memory")
_ORDER = ("processes", "batch_size", "workers", "precision", "tf32", "channels_last", "compile")
_SHOWN = {
    "base": ("processes", "batch_size"),
    "batch": ("batch_size",),
    "workers": ("workers",),
    "precision": ("precision", "tf32", "channels_last", "compile"),
    "scaling": ("processes", "batch_size"),
}


def try_lines(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield a line for each try; why one did not run is a sentence of the verdict."""
    for row in results.rows:
        what = str(row.get("what"))
        if what == "scaling" and any(_same(row, one) for one in results.rows if one.get("what") == "base"):
            continue  # one process, which is the base
        setting = ", ".join(f"{key} {row[key]}" for key in _SHOWN.get(what, _ORDER) if key in row)
        if row.get("how") == "dp":
            setting = f"dp, gpus {row.get('gpus')}, batch_size {row.get('batch_size')}"
        if row.get("how") == "fsdp2":
            setting = f"fsdp2, {setting}"
        if "why" in row:
            yield (what, setting, "no memory" if row["why"] == FULL else "failed", "-", "-", "-", "-")
            continue
        yield (
            what,
            setting,
            digits(rate) if (rate := positive(row.get("samples_per_second"))) else "unknown",
            f"{step:.3g} s" if (step := positive(row.get("step_seconds"))) else "unknown",
            percent(positive(row.get("waits_for_data"))),
            percent(positive(row["communication"])) if "communication" in row else "-",
            size_text(peak) if (peak := positive(row.get("peak_bytes"))) else "unknown",
        )


def _same(one: Row, other: Row) -> bool:
    return all(
        one.get(key) == other.get(key) for key in ("processes", "batch_size", "samples_per_second", "why")
    )
