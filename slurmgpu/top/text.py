"""A job and the list of jobs as lines of styled text, for the screens; all that comes from others is made harmless here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from slurmgpu.amounts import count, energy, size_text
from slurmgpu.jobs.live import Detail
from slurmgpu.jobs.table import MOST, cell, facts_of
from slurmgpu.jobs.view import JobView, Line, colour_of, reason
from slurmgpu.printable import printable

__all__ = ["Rows", "bar", "chart", "describe", "rows_of"]

_CHART_ROWS = 5
_TWO_TO_A_LINE = 70


# Bars and charts

_BLOCKS = " ▁▂▃▄▅▆▇█"


def chart(
    values: Sequence[float],
    width: int,
    height: int = 1,
    *,
    low: float | None = None,
    high: float | None = None,
) -> list[str]:
    """Draw values over `width` columns and `height` rows, the first row on top; [] without values.

    Where there are more values than columns, a column is the mean of its share. `low` and `high` are the bounds of the
    scale, by default those of the values; what lies beyond is drawn at the edge.
    """
    if not values or width < 1:
        return []
    number = min(width, len(values))
    edges = [len(values) * index // number for index in range(number + 1)]
    columns = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges) if end > start]
    bottom = min(columns) if low is None else low
    top = max(columns) if high is None else high
    steps = 8 * height
    # The least value is still seen: one eighth.
    levels = [
        max(1, min(steps, round((value - bottom) / (top - bottom) * steps))) if top > bottom else 1
        for value in columns
    ]
    return [
        "".join(_BLOCKS[max(0, min(8, level - 8 * row))] for level in levels)
        for row in range(height - 1, -1, -1)
    ]


def bar(part: int, whole: int, width: int) -> str:
    """Return how much of a whole is used, as a bar."""
    filled = round(part / whole * width) if whole else 0
    return "█" * filled + "░" * (width - filled)


# One job


def describe(line: Line, detail: Detail | None, lines: list[str], now: datetime, width: int) -> list[Text]:
    """Return one job: what Slurm says, why it waits or failed (`lines`), what its run was planned to be, what it does."""
    job, view = line.job, JobView(line, now)
    head = Text(f"job {job.job_id}  {printable(job.name)}  ", style="bold")
    head.append(job.state.value, style=colour_of(job.state))
    found = [head, *_facts(view, width)]
    reasons = [one for one in (reason(job), line.tasks) if one]
    if lines or reasons:
        title = "How it ended" if job.state.is_final else "Why it waits" if job.state.is_waiting else "Reason"
        found += _section(title)
    if lines:
        found += [part for one in lines for part in _folded(printable(one), width)]
    elif reasons:
        found += [Text(f"  {printable(one)}") for one in reasons]
        if job.state.is_waiting:
            found.append(Text("  w asks Slurm for the figures", style="dim"))
    if detail is None:
        return [*found, Text(), Text("reading its files ...", style="dim")]
    found += _run(detail, width)
    if line.tasks:
        text = "t in the list shows each task: progress and use are each task's own"
        return [*found, Text(), Text(text, style="dim")]
    return [*found, *_progress(detail, now, width), *_gpus(detail, width)]


def _section(title: str) -> tuple[Text, Text]:
    return Text(), Text(title, style="bold")


def _facts(view: JobView, width: int) -> Iterator[Text]:
    """Yield what Slurm says of it, two facts to a line where there is room."""
    found = [f"{name:<11}{text}" for name, text in facts_of(view).items()]
    if width < _TWO_TO_A_LINE:
        yield from (Text(f"  {fact}") for fact in found)
        return
    for left, right in zip(found[::2], [*found[1::2], ""], strict=False):
        yield Text(f"  {left:<38}  {right}".rstrip())


def _run(detail: Detail, width: int) -> Iterator[Text]:
    job, run, plan = detail.job, detail.run, detail.plan
    yield from _section("Run")
    if run is None:
        yield Text("  no run directory of slurmgpu's is known here", style="dim")
        if job.work_dir:
            yield Text(f"  work folder  {printable(job.work_dir)}")
    else:
        yield Text(f"  {printable(run.run_dir)}")
    if plan is not None:
        figures = [
            count(plan.nodes, "node"),
            f"{plan.gpus_per_node} {plan.gpu_type or 'GPU'} on each" if plan.gpus_per_node else "no GPU",
            f"{plan.processes_per_node} process{'' if plan.processes_per_node == 1 else 'es'} on each, by {plan.launcher}",
            f"{plan.cpus_per_task} CPUs a task" if plan.cpus_per_task else "",
            f"memory {plan.memory}" if plan.memory is not None else "",
            f"time {plan.time}" if plan.time is not None else "",
        ]
        yield from _folded(f"plan  {_listed(figures)}", width, hang=6)
        if plan.gpu_hours is not None:
            yield Text(f"  plan  {plan.gpu_hours:g} GPU-hours at most")
        if plan.command:
            yield from _folded("runs  " + printable(" ".join(plan.command)), width, hang=6)
    elif detail.plan_note:
        yield Text(f"  plan  {printable(detail.plan_note)}", style="dim")


def _listed(parts: Iterable[str]) -> str:
    return printable(", ".join(filter(None, parts)))


def _folded(text: str, width: int, *, hang: int = 2) -> Iterator[Text]:
    """Fold a text: what is too long goes on further in, by `hang` columns more than it begins."""
    inside = " " * (2 + len(text) - len(text.lstrip()) + hang)
    lines = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent=inside, break_on_hyphens=False)
    return (Text(line) for line in lines or [""])


def _progress(detail: Detail, now: datetime, width: int) -> Iterator[Text]:
    progress = detail.job.progress
    if progress is None:
        if not detail.job.state.is_waiting:
            yield Text()
            yield Text("No progress is known: the run has no metrics of slurmgpu's training", style="dim")
        return
    yield from _section("Progress")
    yield Text(f"  {JobView(Line(detail.job), now).progress}")
    waits, speed = progress.data_wait_share, progress.samples_per_second
    more = _listed((
        f"epoch {progress.epoch}" if progress.epoch is not None else "",
        f"{speed:.4g} samples/s" if speed is not None else "",
        f"waits for data {waits:.0%} of a step" if waits is not None else "",
    ))  # fmt: skip
    if more:
        yield Text(f"  {more}")
    if len(detail.losses) > 1:
        values = [loss for _, loss in detail.losses]
        rows = chart(values, max(20, min(width - 16, 100)), _CHART_ROWS)
        labels = {0: f"{max(values):.4g}", len(rows) - 1: f"{min(values):.4g}"}
        yield Text(f"  loss, steps {detail.losses[0][0]} to {detail.losses[-1][0]}")
        for number, row in enumerate(rows):
            yield Text(f"  {labels.get(number, ''):>9} ").append(row, style="cyan")


def _gpus(detail: Detail, width: int) -> Iterator[Text]:
    sampled, job = detail.job.sampled, detail.job
    if sampled is None:
        if job.gpus and not job.state.is_waiting:
            yield Text()
            yield Text("GPU use is not known: the job is not sampled", style="dim")
        return
    age = f", newest {sampled.age_seconds:.0f} s ago" if sampled.age_seconds is not None else ""
    yield from _section(
        f"Use, by samples over {sampled.seconds:.0f} s{age if not job.state.is_final else ''}"
    )
    if job.gpus and not sampled.gpus:
        yield Text("  of its GPUs nothing is known: they were not measured", style="dim")
    series = {(one.host, one.gpu): one.use for one in detail.gpus}
    room = max(10, min(width - 56, 60))
    for gpu in sampled.gpus:
        total = f" of {gpu.memory_total / 2**30:.0f}" if gpu.memory_total else ""
        figures = (  # what was not measured is left out
            f"{gpu.utilisation_mean:.0%} mean" if gpu.utilisation_mean is not None else "use not measured",
            f"{gpu.sm_activity_mean:.0%} of SMs" if gpu.sm_activity_mean is not None else "",
            f"{size_text(gpu.memory_peak)}{total}" if gpu.memory_peak is not None else "",
            f"{gpu.power_mean:.0f} W" if gpu.power_mean is not None else "",
        )
        drawn = next(iter(chart(series.get((gpu.host, gpu.index), []), room, low=0.0, high=1.0)), "")
        text = Text(f"  {printable(gpu.host)}:{gpu.index} ").append(drawn, style="cyan")
        yield text.append(f" {'  '.join(filter(None, figures))}")
    rest = _listed((
        f"{sampled.cpu_cores_mean:.1f} CPUs" if sampled.cpu_cores_mean is not None else "",
        f"memory {size_text(sampled.rss_peak)} at most" if sampled.rss_peak is not None else "",
        f"{energy(sampled.energy)} by its GPUs" if sampled.energy is not None else "",
    ))  # fmt: skip
    if rest:
        yield Text(f"  {rest}")


# The list

_DOING = "PROGRESS OR REASON"
_LEAST_DOING = 28
_KEYS = ("job", "name", "user", "state", "partition", "gpus", "elapsed", "when")
_MOST_WIDE = {"name": 24, "gpus": 14, "user": 12, "partition": 14, "job": 20}
# On a narrow terminal, the first goes first; what is left is never left out.
_LEFT_OUT = ("when", "partition", "elapsed", "user", "gpus")


class Rows(NamedTuple):
    """The columns and the cells under them, as wide as they fit."""

    titles: tuple[tuple[str, int], ...]
    """Each with its width in cells."""
    cells: list[tuple[Text, ...]]


def rows_of(lines: Sequence[Line], now: datetime, width: int, *, doubtful: bool = False) -> Rows:
    """Return the lines as cells; with `doubtful` each state has a question mark, since it may have changed."""
    lines = lines[:MOST]
    views = [JobView(line, now) for line in lines]
    texts = {key: [cell(key, view) or "-" for view in views] for key in _KEYS}
    if doubtful:
        texts["state"] = [f"{state}?" for state in texts["state"]]
    keys = [key for key in _KEYS if key != "user" or len(set(texts["user"])) > 1]
    widths = {
        key: min(max([cell_len(text) for text in texts[key]] + [len(key)]), _MOST_WIDE.get(key, 40))
        for key in keys
    }

    def left() -> int:
        return width - sum(widths.values()) - 2 * len(widths)

    for key in _LEFT_OUT:
        if left() < _LEAST_DOING:
            widths.pop(key, None)
    if left() < _LEAST_DOING:
        widths["name"] = min(widths["name"], 12)
    doing = max(8, left())
    cells = [
        (
            *(
                _cut(texts[key][number], widths[key], colour_of(view.job.state) if key == "state" else "")
                for key in widths
            ),
            _cut(view.doing or "-", doing),
        )
        for number, view in enumerate(views)
    ]
    titles = [(key.upper(), wide + 2) for key, wide in widths.items()]
    return Rows((*titles, (_DOING, doing)), cells)


def _cut(text: str, width: int, style: str = "") -> Text:
    made = Text(text, style=style, no_wrap=True)
    made.truncate(width, overflow="ellipsis")
    return made
