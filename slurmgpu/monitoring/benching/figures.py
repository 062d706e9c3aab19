"""The plots of a bench: what they show, as SVG inside its page, and as one PNG for talks and reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.monitoring.benching.networks import times
from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.benching.wording import digits
from slurmgpu.monitoring.json_rows import positive
from slurmgpu.monitoring.reporting.plots import Line, plot

__all__ = ["Figure", "figures", "svg", "write_png"]

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
    """The plots of what one machine measured; a line needs two points, and a plot a line."""
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
    """Each way to use several GPUs, beside as much as nothing lost would give."""
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
    """The plot for a page."""
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
