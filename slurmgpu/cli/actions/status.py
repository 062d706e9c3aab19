"""What ``slurmgpu status`` does."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.errors import InvalidInput, OutcomeUnknown, SlurmUnreachable
from slurmgpu.files.settings import runs_by_settings
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.monitoring.runs import run_of_job, runs_that_ended
from slurmgpu.monitoring.select import current_user, select, since_moment
from slurmgpu.monitoring.status import StatusReport, status
from slurmgpu.monitoring.table import COLUMNS, plain, table
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from rich.console import Console

    from slurmgpu.cli.status import Which

# What many users' watches may cost a controller together sets the pace, not what one would like to see.
WATCH_SECONDS = 30.0

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

# On a narrow terminal; --json always has everything.
_LONG = 16
_ROOM_FOR_REASONS = 30


def act(
    ctx: click.Context,
    jobs: tuple[str, ...],
    which: Which,
    each_task: bool,
    live: bool,
    watch: bool,
    as_json: bool,
) -> None:
    wanted = _states(which.states) if which.states is not None else None
    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()
    selections = select(jobs)
    user = None if which.all_users else current_user()
    run_for = _run_for(named=bool(selections))
    while True:
        moment = since_moment(which.since, datetime.now(timezone.utc)) if which.since else None
        try:
            report = status(slurm, user=user, selections=selections, since=moment, live=live, run_for=run_for)
        except SlurmUnreachable as error:
            if not watch:
                raise
            click.echo(f"note: {error.message}; asking again in {WATCH_SECONDS:g} s", err=True)
            if not _paused(time.sleep):
                return
            continue
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
        shown = report.jobs if wanted is None else [job for job in report.jobs if job.state in wanted]
        _show(replace(report, jobs=shown), live=live, each_task=each_task, as_json=as_json, one_line=watch)
        if report.missing and (not watch or len(report.missing) == len(selections)):
            ctx.exit(1)  # nothing of these will ever change
        if report.unasked and not watch:
            ctx.exit(OutcomeUnknown.exit_code)
        done = selections and not report.unasked and all(job.state.is_final for job in report.jobs)
        if not watch or done or not _paused(time.sleep):
            return


def _run_for(named: bool) -> Callable[[JobStatus], Run | None]:
    """What finds the run of a job among those of this folder and of the job's own; of many jobs, what is quick."""

    @cache
    def finder() -> Callable[[JobStatus], Run | None]:
        runs_of = runs_by_settings(Path.cwd(), os.environ)
        return partial(run_of_job, runs_of=runs_of) if named else runs_that_ended(runs_of)

    return lambda job: finder()(job)


def _paused(sleep: Callable[[float], None]) -> bool:
    """Wait until the next look; False where the person ends the watch."""
    try:
        sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return False
    return True


def _states(text: str) -> set[JobState]:
    """The states that a list names, in Slurm's long or short words."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if JobState.parse(word) is JobState.UNKNOWN and word.upper() != "UNKNOWN":
            raise InvalidInput(
                f"--state {word}: is not a state of a job",
                hint=f"states are {', '.join(state.value.lower() for state in JobState)}",
            )
    return {JobState.parse(word) for word in words}


def _show(report: StatusReport, *, live: bool, each_task: bool, as_json: bool, one_line: bool) -> None:
    if as_json:
        click.echo(_json(report, one_line))
        return
    for note in report.notes:
        click.echo(f"note: {printable(note)}", err=True)
    cluster = report.cluster or "unknown"
    if not report.jobs and (report.missing or report.unasked):
        return  # a note says so of each
    if not report.jobs:
        click.echo(
            f"No jobs on cluster {cluster}, waiting, running or finished in the time asked for.", err=True
        )
        return
    click.echo(f"cluster {cluster}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}")
    if sys.stdout.isatty():
        from rich.console import Console

        _pretty(report, live, Console(), each_task=each_task)
    else:
        click.echo(plain(report.jobs, report.time, live=live, each_task=each_task))


def _json(report: StatusReport, one_line: bool) -> str:
    document = {
        "schema": "slurmgpu.status/1",
        "cluster": report.cluster,
        "time": report.time.isoformat(timespec="seconds"),
        "jobs": [job.model_dump(mode="json") for job in report.jobs],
        "missing": report.missing,
        "unasked": report.unasked,
        "notes": report.notes,
    }
    return json.dumps(document, indent=None if one_line else 2)


def _pretty(report: StatusReport, live: bool, console: Console, *, each_task: bool = False) -> None:
    """The table in colour, as wide as the terminal: the reason beside a job where there is room, else below it.

    Where even that is too wide, columns are left out, those first that matter least.
    """
    from rich.text import Text

    found, jobs = table(report.jobs, report.time, live=live, each_task=each_task)
    rows = [list(row) for row in found]
    reasons = [row.pop() for row in rows]
    beside = _width(rows) + 2 + min(max(map(len, reasons)), _ROOM_FOR_REASONS) <= console.width
    if not beside:
        _narrow(rows, console.width)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    state = rows[0].index("STATE")
    indent = sum(widths) + 2 * len(widths) if beside else 2
    for number, (row, reason) in enumerate(zip(rows, reasons, strict=True)):
        text = Text("  ").join(Text(cell.ljust(width)) for cell, width in zip(row, widths, strict=True))
        if number == 0:
            text.stylize("bold")
            reason = reason if beside else ""
        else:
            start = sum(widths[:state]) + 2 * state
            colour = _COLOURS.get(jobs[number - 1].job.state.value, "red")
            text.stylize(colour, start, start + len(row[state]))
        folded = _folded("" if reason == "-" and not beside else reason, console.width - indent)
        if beside:
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
