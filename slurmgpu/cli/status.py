"""`slurmgpu status`: the queue, live use and finished jobs.

What ``slurmgpu status`` prints: a table as wide as the terminal, a plain one for pipes, or JSON.

What ``slurmgpu status`` does.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from slurmgpu.amounts import duration
from slurmgpu.cli.asked import How, Which
from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.filters import FILTERS, chosen, named, user_of
from slurmgpu.cli.gathering import gathered
from slurmgpu.errors import OutcomeUnknown, SlurmUnreachable
from slurmgpu.models.run import JobState
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from slurmgpu.files.settings import Settings
    from slurmgpu.jobs.arrays import Line
    from slurmgpu.jobs.look import Detail, StatusReport
    from slurmgpu.jobs.select import Selection
    from slurmgpu.jobs.table import Column
    from slurmgpu.models.run import JobStatus, Run
    from slurmgpu.slurm import Slurm


@click.command("status")
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=jobs_by_tab)
@gathered(
    "which",
    Which,
    click.option("--user", metavar="NAME", help="That user's jobs, as far as the site shows them."),
    click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them."),
    click.option(
        "--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d)."
    ),
    *FILTERS,
)
@gathered(
    "how",
    How,
    click.option("--tasks", "each_task", is_flag=True, help="Each task of an array in a line of its own."),
    click.option(
        "--columns", metavar="LIST", help="These columns, in this order; +LIST adds to the usual ones."
    ),
    click.option(
        "--sort", metavar="LIST", help="By these columns; - turns one round: state,-elapsed (default by id)."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document (with --watch: one a line)."),
)
@click.option("--live", is_flag=True, help="What jobs use: running ones by asking their nodes.")
@click.option("--watch", is_flag=True, help="Ask again every 30 s; ends when all JOBs named have finished.")
@click.pass_context
def command(
    ctx: click.Context, jobs: tuple[str, ...], which: Which, how: How, live: bool, watch: bool
) -> None:
    """Show my jobs: waiting, running, and finished in the last day.

    JOB is a job id (112, 112_3), a job name, or a run directory. Jobs named by id are found whatever their
    age; exit code 1 when one is named that Slurm does not know, 3 when the queue could not be asked for it.
    Where Slurm does not answer at all, what it said last is shown with its age, and the exit code is 4.
    """

    from slurmgpu.cli.shared_answers import shared_slurm
    from slurmgpu.files.settings import load_settings
    from slurmgpu.interrupts import as_interrupts
    from slurmgpu.jobs.select import select
    from slurmgpu.jobs.table import in_order

    with as_interrupts():
        # Of tens of thousands of records none is in a circle, and to look for circles would take as long as to read them.
        gc.set_threshold(100_000, 50, 50)
        settings = load_settings(Path.cwd(), os.environ).settings
        columns = _columns(how.columns, settings)
        counts = chosen(which)
        if how.sort:
            in_order([], how.sort, datetime.now(timezone.utc))
        slurm = shared_slurm(ctx, settings)
        if watch and slurm.shelf is not None:
            slurm.shelf.good_for = _pace(slurm)  # a watch's picture is never older than that
        selections = select(jobs)
        asked = _Question(
            selections,
            user_of(which),
            which.since,
            live,
            "use" if any(column.is_use for column in columns) else "usual",
            _run_for(named=bool(selections)),
        )
        some = which.states is not None or any(one.job_id and one.job_id.tasks for one in selections)
        view = View(live, _opened(selections), how, columns, watch, some, named(which))

        def shown(report: StatusReport) -> StatusReport:
            found = [task for job in report.jobs if counts(job) for task in _named(job, selections)]
            return replace(report, jobs=in_order(found, how.sort, report.time) if how.sort else found)

        while True:
            try:
                report = asked.ask(slurm)
            except SlurmUnreachable as error:
                known = asked.last_known(slurm)
                _clear(watch, how.as_json)
                if known is not None:
                    show(shown(known), view, why_old=error.message)
                if not watch:
                    raise
                click.echo(f"note: {error.message}; asking again in {_pace(slurm):g} s", err=True)
                if not _paused(_pace(slurm)):
                    return
                continue
            _clear(watch, how.as_json)
            show(shown(report), view)
            if report.missing and (not watch or len(report.missing) == len(selections)):
                ctx.exit(1)  # nothing of these will ever change
            if report.unasked and not watch:
                ctx.exit(OutcomeUnknown.exit_code)
            done = selections and not report.unasked and all(job.state.is_final for job in report.jobs)
            # Those who watch look at the same moment, so that one of them asks for all.
            if not watch or done or not _paused(_pace(slurm) - min(report.age, _pace(slurm))):
                return


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

    from slurmgpu.jobs.arrays import Among
    from slurmgpu.jobs.arrays import lines as lines_of
    from slurmgpu.jobs.table import aligned, table

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
    from slurmgpu.cli.shared_answers import ago

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

    from slurmgpu.jobs.table import COLUMNS

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


# What many users' watches may cost a controller together sets the pace, not what one would like to see.
WATCH_SECONDS = 30.0


class _Question(NamedTuple):
    """What is asked at each look."""

    selections: list[Selection]
    user: str | None
    since: str | None
    live: bool
    detail: Detail
    run_for: Callable[[JobStatus], Run | None]

    def ask(self, slurm: Slurm) -> StatusReport:
        from slurmgpu.jobs.look import status

        return status(
            slurm,
            user=self.user,
            selections=self.selections,
            since=self._moment(),
            live=self.live,
            detail=self.detail,
            run_for=self.run_for,
        )

    def last_known(self, slurm: Slurm) -> StatusReport | None:
        from slurmgpu.jobs.look import last_known

        return last_known(
            slurm, user=self.user, selections=self.selections, since=self._moment(), detail=self.detail
        )

    def _moment(self) -> datetime | None:
        from slurmgpu.jobs.select import since_moment

        return since_moment(self.since, datetime.now(timezone.utc)) if self.since else None


def _pace(slurm: Slurm) -> float:
    """The seconds between two looks of a watch."""
    return max(WATCH_SECONDS, slurm.shelf.floor if slurm.shelf is not None else 0.0)


def _clear(watch: bool, as_json: bool) -> None:
    if watch and not as_json and sys.stdout.isatty():
        click.clear()


def _columns(given: str | None, settings: Settings) -> tuple[Column, ...]:
    """The columns asked for, on the command line or in the settings; none: those that say something."""

    from slurmgpu.jobs.table import COLUMNS, columns_of

    usual = columns_of(settings.status_columns, "status_columns in the settings")
    if given is None:
        return usual
    added = given.startswith("+")
    named = columns_of(given.removeprefix("+").split(","), "--columns")
    if not added:
        return named
    usual = usual or tuple(column for column in COLUMNS if column.shown([], False))
    beside = [column for column in named if column not in usual]
    return (*usual[:-1], *beside, usual[-1])  # the reason is the longest, and last


def _opened(selections: list[Selection]) -> bool:
    """Whether an array, or some of its tasks, are all that is named: each has a line of its own then."""
    ids = [one.id for one in selections]
    tasks_alone = all(one is not None and one.tasks is not None for one in ids)
    return bool(ids) and (tasks_alone or (len(ids) == 1 and ids[0] is not None))


def _named(job: JobStatus, selections: list[Selection]) -> list[JobStatus]:
    """A record, or of tasks that wait together those that are named one by one."""

    from slurmgpu.jobs.arrays import only

    means = [one for one in selections if one.matches(job)]
    named = [one.job_id for one in means if one.job_id is not None]
    return only(job, named) if means and len(named) == len(means) else [job]


def _run_for(named: bool) -> Callable[[JobStatus], Run | None]:
    """What finds the run of a job among those of this folder and of the job's own; of many jobs, what is quick."""

    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import run_of_job, runs_that_ended

    @cache
    def finder() -> Callable[[JobStatus], Run | None]:
        runs_of = runs_by_settings(Path.cwd(), os.environ)
        return partial(run_of_job, runs_of=runs_of) if named else runs_that_ended(runs_of)

    return lambda job: finder()(job)


def _paused(seconds: float) -> bool:
    """Wait until the next look; False where the person ends the watch."""
    try:
        time.sleep(seconds)
    except KeyboardInterrupt as error:
        if type(error) is not KeyboardInterrupt:
            raise  # TERM, which is no person's way to end it
        return False
    return True
