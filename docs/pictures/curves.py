"""Draws the loss curves of the docs from benchmarks/results: ``python docs/pictures/curves.py [digits|...]``.

Needs matplotlib (``pip install matplotlib``), which nothing else here does. ``benchmarks/examples.py`` and
``benchmarks/killed_run.py`` measure what is drawn.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent.parent / "benchmarks" / "results"
TRAINED, TESTED, PALE = "#1f77b4", "#d62728", "#c9ced6"
STARTS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf"]

mpl.use("svg")
mpl.rcParams.update(
    {
        "svg.fonttype": "none",  # text stays text: small, and the reader's own font
        "svg.hashsalt": "slurmgpu",  # the same names in the file every time
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#eceff3",
        "legend.frameon": False,
    }
)


def digits() -> None:
    """Loss over samples, all seeds."""
    axes = _axes()
    _losses(axes, "digits", 1)
    axes.set_yscale("log")
    axes.set(xlabel="images trained on, of all epochs", ylabel="loss (nats per image)")
    _save("digits.svg")


def language_model() -> None:
    """Loss over characters, all seeds; a second axis in bits."""
    axes = _axes()
    context = _setting("language_model", "context")
    _losses(axes, "language_model", context)
    axes.set(xlabel="characters trained on, of all epochs", ylabel="loss (nats per character)")
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value / 1e6:g} M")
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / 0.6931, lambda bits: bits * 0.6931))
    bits.set_ylabel("bits per character")
    _save("language-model.svg")


def killed_run() -> None:
    """The curve of a run that was killed again and again, on that of the run left alone."""
    results = _results("killed_run")
    pyplot.figure(figsize=(7.6, 4.6))
    axes, below = pyplot.gcf().subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1.15], "hspace": 0.1}
    )
    alone, killed = results["curves"]["alone"], results["curves"]["killed"]
    axes.plot(*_columns(alone), color=PALE, linewidth=7, label="left alone", solid_capstyle="round")
    for start in range(len(results["disturbances"]) + 1):
        points = [point for point in killed if point[0] == start]
        axes.plot(*_columns(points), color=STARTS[start % len(STARTS)], linewidth=1.4)
    axes.plot(
        [], [], color=STARTS[0], linewidth=1.4, label="killed and started again, a colour for each start"
    )
    axes.set(ylabel="loss (nats per character)")
    axes.legend(loc="upper right")
    _starts(below, results["disturbances"], max(step for _, step, _ in killed))
    for each in results["disturbances"]:
        axes.axvline(each["last_step_seen"], color="#6b7280", linewidth=0.8, linestyle=":")
    _save("killed-run.svg")


def _starts(axes: Axes, disturbances: list[dict[str, Any]], last: int) -> None:
    """A bar for the steps of each start, and what ended it; steps done twice are hatched."""
    begins = [0, *(each["went_on_from"] for each in disturbances)]
    ends = [*(each["last_step_seen"] for each in disturbances), last]
    for start, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        axes.barh(start, end - begin, left=begin, color=STARTS[start % len(STARTS)], height=0.7)
        if start < len(disturbances):
            each = disturbances[start]
            lost = end - each["went_on_from"]
            axes.barh(start, lost, left=end - lost, color="none", edgecolor="white", hatch="////", height=0.7)
            said = f"{each['signal'].removeprefix('SIG')} to {each['to']}" + (
                f", {lost} steps again" if lost else ""
            )
            axes.text(end + 5, start, said, va="center", fontsize=8, color="#374151")
    axes.set(xlabel="step", ylabel="start", yticks=[], ylim=(len(begins) - 0.4, -0.6))
    axes.grid(visible=False)


def _losses(axes: Axes, example: str, each: int) -> None:
    """The curves of all seeds; ``each`` is how many things a sample holds."""
    runs = _results("examples")[example]["curves"]
    for number, run in enumerate(runs):
        for kind, colour, marker in (("train", TRAINED, ""), ("test", TESTED, "o")):
            samples, losses = zip(*run[kind], strict=True)
            label = (
                {"train": "training", "test": "held out"}[kind] + f", {len(runs)} seeds"
                if not number
                else None
            )
            axes.plot(
                [count * each for count in samples],
                losses,
                color=colour,
                linewidth=1.1,
                marker=marker,
                markersize=3,
                alpha=0.75,
                label=label,
            )
    axes.legend(loc="upper right")


def _results(benchmark: str) -> Any:
    return json.loads((RESULTS / f"{benchmark}.json").read_text())["results"]


def _setting(example: str, name: str) -> int:
    text = (HERE.parent.parent / "examples" / example / "job.yaml").read_text()
    found = re.search(rf"^ +{name}: (\d+)", text, flags=re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def _columns(points: list[list[float]]) -> tuple[list[float], list[float]]:
    return [step for _, step, _ in points], [loss for _, _, loss in points]


def _axes() -> Axes:
    pyplot.figure(figsize=(7.6, 3.6))
    axes: Axes = pyplot.gca()
    return axes


def _save(name: str) -> None:
    figure = pyplot.gcf()
    figure.savefig(HERE / name, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    if "--png" in sys.argv:
        mpl.use("agg")
        figure.savefig(Path(name).with_suffix(".png"), bbox_inches="tight", dpi=110)
    pyplot.close(figure)
    svg = (HERE / name).read_text(encoding="utf-8")
    (HERE / name).write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), encoding="utf-8")
    print(f"wrote {HERE / name}: {len(svg) // 1024} kB")


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if word != "--png"]
    for picture in chosen or ["digits", "language_model", "killed_run"]:
        {"digits": digits, "language_model": language_model, "killed_run": killed_run}[picture]()
