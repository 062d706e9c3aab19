"""What ``slurmgpu status`` prints: a table as wide as the terminal, a plain one for pipes, or JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from slurmgpu.amounts import duration
from slurmgpu.cli.shared_answers import ago
from slurmgpu.jobs.arrays import Among, Line
from slurmgpu.jobs.arrays import lines as lines_of
from slurmgpu.jobs.look import StatusReport
from slurmgpu.jobs.table import COLUMNS, Column, aligned, table
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from slurmgpu.cli.asked import How

_COLOURS = {
    "RUNNING": "green",
    "COMPLETED": "green",
    "CONFIGURING": "cyan",
    "COMPLETING": "cyan",
    "PENDING": "yellow",
    "REQUEUED": "yellow",
    "SUSPENDED": "yellow",
    "PREEMPTED": "magenta",
    "CANCELLED": "magenta",
    "UNKNOWN": "bold red",
}
# What Slurm's word for the end leaves open, and a job's logs may tell.
_FOR_THE_LOGS = (JobState.FAILED, JobState.OUT_OF_MEMORY)
# On a narrow terminal; --json always has everything.
_LONG = 16
_ROOM_FOR_REASONS = 30


class View(NamedTuple):
    """How jobs are shown, look after look."""

    live: bool
    opened: bool
    """Whether an array's tasks have lines of their own where one array is all that is shown."""
    how: How
    columns: Sequence[Column]
    one_line: bool
    """Whether a JSON document is one line."""
    some: bool = False
    """Whether of an array some tasks may be left out."""
    chosen: str = ""
    """The options that choose among jobs, in words."""


def show(report: StatusReport, view: View, *, why_old: str = "") -> None:
    """Print a report; ``why_old``: why it is what Slurm said last, and not what it says now."""
    if view.how.as_json:
        for part in _json(report, view.one_line, why_old):
            click.echo(part, nl=False)
        return
    for note in report.notes if not why_old else ():
        click.echo(f"note: {printable(note)}", err=True)
    cluster = report.cluster or "unknown"
    if not report.jobs and (report.missing or report.unasked):
        return  # a note says so of each
    if not report.jobs:
        click.echo(
            f"No jobs{printable(view.chosen)} on cluster {cluster}: none waiting or running, and none finished in the time "
            "asked for.",
            err=True,
        )
        return
    click.echo(f"cluster {cluster}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}{_age(report, why_old)}")
    each_task = view.how.each_task
    among = Among(report.since, view.some)
    arrays = {job.array_job_id for job in report.jobs}
    if view.opened and not each_task and len(arrays) == 1 and None not in arrays:
        each_task = True
        if (summary := lines_of(report.jobs, among=among)[0].tasks) is not None:
            click.echo(f"array {arrays.pop()}: {summary}")
    rows, lines = table(
        report.jobs, report.time, live=view.live, each_task=each_task, columns=view.columns, among=among
    )
    if why_old:
        rows = _marked(rows)
    if sys.stdout.isatty():
        from rich.console import Console

        _pretty(rows, lines, Console(), as_asked=bool(view.columns))
        if (question := unexplained(report.jobs)) is not None:
            click.secho(question, dim=True)
    else:
        click.echo(aligned(rows))


def unexplained(jobs: Sequence[JobStatus]) -> str | None:
    """Which command tells why the newest job failed of which nobody has said so yet; None where there is no such job."""
    failed = [job for job in jobs if job.state in _FOR_THE_LOGS and job.cause is None]
    newest = max(failed, key=lambda job: (job.end is not None, job.end), default=None)
    return f"to see why {newest.job_id} failed: slurmgpu why {newest.job_id}" if newest is not None else None


def _age(report: StatusReport, why_old: str) -> str:
    if not why_old:
        return ago(report.age)
    since = f"{report.age:.0f} s" if report.age < 100 else duration(int(report.age))
    return f": WHAT SLURM SAID {since} AGO. It does not answer now, and the jobs may have gone on since"


def _marked(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows in which each state is in doubt: who takes a line out of the table still sees it."""
    if "STATE" not in rows[0]:
        return rows
    state = rows[0].index("STATE")
    return [rows[0], *((*row[:state], f"{row[state]}?", *row[state + 1 :]) for row in rows[1:])]


def _json(report: StatusReport, one_line: bool, why_old: str) -> Iterator[str]:
    """The document, job by job.

    What Slurm said before it fell silent is apart from `jobs`, which a program takes as it stands.
    """
    told = {"time": report.time.isoformat(timespec="seconds"), "age_seconds": round(report.age, 1)}
    document = {
        "schema": "slurmgpu.status/1",
        "cluster": report.cluster,
        **told,
        "missing": [] if why_old else report.missing,
        "unasked": report.unasked,
        "notes": [why_old] if why_old else report.notes,
    }
    end, between = ("", " ") if one_line else ("\n", "\n  ")
    if why_old:
        document |= {"jobs": []}
        last, close = f'"last_known": {json.dumps(told)[:-1]}, "jobs": [', "]}"
    else:
        last, close = '"jobs": [', "]"
    # A job a line, which is as easily read, takes a tenth of the time, and is never in memory as a whole.
    yield f"{{{end}" + "".join(
        f"  {json.dumps(key)}: {json.dumps(value)},{end}" for key, value in document.items()
    )
    yield f"  {last}"
    for number, job in enumerate(report.jobs):
        yield f"{',' if number else ''}{between}  {json.dumps(job.model_dump(mode='json'))}"
    yield f"{end}  {close}{end}}}\n"


def _pretty(
    found: Sequence[Sequence[str]], lines: Sequence[Line], console: Console, *, as_asked: bool = False
) -> None:
    """The table in colour, as wide as the terminal: the reason beside a job where there is room, else below it.

    Where even that is too wide, columns are left out, those first that matter least; none of those that were asked for.
    """
    from rich.text import Text

    rows = [list(row) for row in found]
    last = rows[0][-1] == "REASON"
    reasons = [row.pop() if last else "" for row in rows]
    if not rows[0]:  # the reason is all that was asked for
        rows, reasons = [[text] for text in reasons], ["" for _ in reasons]
    beside = _width(rows) + 2 + min(max(map(len, reasons)), _ROOM_FOR_REASONS) <= console.width
    if not beside and not as_asked:
        _narrow(rows, console.width)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    state = rows[0].index("STATE") if "STATE" in rows[0] else None
    indent = sum(widths) + 2 * len(widths) if beside else 2
    for number, (row, reason) in enumerate(zip(rows, reasons, strict=True)):
        text = Text("  ").join(Text(cell.ljust(width)) for cell, width in zip(row, widths, strict=True))
        if number == 0:
            text.stylize("bold")
            reason = reason if beside else ""
        elif state is not None:
            start = sum(widths[:state]) + 2 * state
            colour = _COLOURS.get(lines[number - 1].job.state.value, "red")
            text.stylize(colour, start, start + len(row[state]))
        folded = _folded("" if reason == "-" and not beside else reason, console.width - indent)
        if beside and folded:
            text.append(f"  {folded.pop(0)}")
        text.rstrip()
        console.print(text, soft_wrap=True)
        for part in folded:
            console.print(Text(" " * indent + part), soft_wrap=True)


def _width(rows: list[list[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _narrow(rows: list[list[str]], width: int) -> None:
    """Shorten long names, then leave columns out, until the rows fit."""
    for name in ("NODES", "NAME"):
        column = rows[0].index(name)
        for row in rows:
            if len(row[column]) > _LONG:
                row[column] = row[column][: _LONG - 3] + "..."

    left_out = sorted((one.left_out, one.name) for one in COLUMNS if one.left_out is not None)
    for _, name in left_out:
        if _width(rows) <= width:
            return
        if name in rows[0]:
            column = rows[0].index(name)
            for row in rows:
                del row[column]
