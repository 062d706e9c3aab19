"""`slurmgpu status`: the queue, live use and finished jobs, as a table, or JSON."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.amounts import span
from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.options import filter_options, filters_in_words, job_filter, user_of
from slurmgpu.cli.shared_answers import ago, shared_slurm
from slurmgpu.errors import OutcomeUnknown, SlurmUnreachable
from slurmgpu.interrupts import as_interrupts
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from slurmgpu.files.settings import Settings
    from slurmgpu.jobs.look import Detail, StatusReport
    from slurmgpu.jobs.select import Selection
    from slurmgpu.jobs.table import Column
    from slurmgpu.jobs.view import Line
    from slurmgpu.models.run import JobStatus, Run


@click.command("status")
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=jobs_by_tab)
@click.option("--user", metavar="NAME", help="That user's jobs, as far as the site shows them.")
@click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them.")
@click.option("--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d).")
@filter_options
@click.option("--tasks", "each_task", is_flag=True, help="Each task of an array in a line of its own.")
@click.option("--columns", metavar="LIST", help="These columns, in this order; +LIST adds to the usual ones.")
@click.option(
    "--sort", metavar="LIST", help="By these columns; - turns one round: state,-elapsed (default by id)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document (with --watch: one a line).")
@click.option("--live", is_flag=True, help="What jobs use: running ones by asking their nodes.")
@click.option("--watch", is_flag=True, help="Ask again every 30 s; ends when all JOBs named have finished.")
@click.pass_context
@as_interrupts()
def command(
    ctx: click.Context,
    jobs: tuple[str, ...],
    user: str | None,
    all_users: bool,
    since: str | None,
    states: str | None,
    partitions: str | None,
    accounts: str | None,
    name: str | None,
    each_task: bool,
    columns: str | None,
    sort: str | None,
    as_json: bool,
    live: bool,
    watch: bool,
) -> None:
    """Show my jobs: waiting, running, and finished in the last day.

    JOB is a job id (112, 112_3), a job name, or a run directory. Jobs named by id are found whatever their
    age; exit code 1 when one is named that Slurm does not know, 3 when the queue could not be asked for it.
    Where Slurm does not answer at all, what it said last is shown with its age, and the exit code is 4.
    """
    from dataclasses import replace

    from slurmgpu.files.settings import load_settings
    from slurmgpu.jobs.look import last_known
    from slurmgpu.jobs.look import status as look_up
    from slurmgpu.jobs.select import select, since_moment
    from slurmgpu.jobs.table import in_order

    # Of tens of thousands of records none is in a circle, and to look for circles would take as long as to read them.
    gc.set_threshold(100_000, 50, 50)
    settings = load_settings(Path.cwd(), os.environ).settings
    shown_columns = _columns(columns, settings)
    counts = job_filter(states, partitions, accounts, name)
    if sort:
        in_order([], sort, datetime.now(timezone.utc))
    slurm = shared_slurm(ctx, settings)
    pace = max(WATCH_SECONDS, slurm.shelf.floor if slurm.shelf is not None else 0.0)
    if watch and slurm.shelf is not None:
        slurm.shelf.good_for = pace  # a watch's picture is never older than that
    selections = select(jobs)
    ids = [one.id for one in selections]
    tasks_alone = bool(ids) and all(one is not None and one.tasks is not None for one in ids)
    whose, run_for = user_of(user, all_users), _run_for(named=bool(selections))
    detail: Detail = "use" if any(column.is_use for column in shown_columns) else "usual"

    def look(*, old: bool = False) -> StatusReport | None:
        moment = since_moment(since, datetime.now(timezone.utc)) if since else None
        if old:
            return last_known(slurm, user=whose, selections=selections, since=moment, detail=detail)
        return look_up(
            slurm, user=whose, selections=selections, since=moment, live=live, detail=detail, run_for=run_for
        )

    def show(report: StatusReport, why_old: str = "") -> None:
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
        found = [task for job in report.jobs if counts(job) for task in _named_tasks(job, selections)]
        print_report(
            replace(report, jobs=in_order(found, sort, report.time) if sort else found),
            live=live,
            each_task=each_task,
            # An array, or some of its tasks, are all that is named: each task has a line of its own then.
            opened=tasks_alone or (len(ids) == 1 and ids[0] is not None),
            columns=shown_columns,
            some_tasks=states is not None or any(one.job_id and one.job_id.tasks for one in selections),
            filters=filters_in_words(states, partitions, accounts, name),
            as_json=as_json,
            one_line=watch,
            why_old=why_old,
        )

    while True:
        try:
            report = look()
        except SlurmUnreachable as error:
            known = look(old=True)
            if known is not None:
                show(known, error.message)
            elif watch and not as_json and sys.stdout.isatty():
                click.clear()
            if not watch:
                raise
            click.echo(f"note: {error.message}; asking again in {pace:g} s", err=True)
            if not _paused(pace):
                return
            continue
        assert report is not None
        show(report)
        if report.missing and (not watch or len(report.missing) == len(selections)):
            ctx.exit(1)  # nothing of these will ever change
        if report.unasked and not watch:
            ctx.exit(OutcomeUnknown.exit_code)
        done = selections and not report.unasked and all(job.state.is_final for job in report.jobs)
        # Those who watch look at the same moment, so that one of them asks for all.
        if not watch or done or not _paused(pace - min(report.age, pace)):
            return


# On a narrow terminal; --json always has everything.
_LONG = 16
_ROOM_FOR_REASONS = 30


def print_report(
    report: StatusReport,
    *,
    live: bool,
    each_task: bool,
    opened: bool,
    columns: Sequence[Column],
    some_tasks: bool,
    filters: str,
    as_json: bool,
    one_line: bool,
    why_old: str,
) -> None:
    """Print a report; ``why_old``: why it is what Slurm said last, and not what it says now.

    ``opened``: the tasks of an array have lines of their own if it is alone; ``some_tasks``: some of them may be left out.
    """
    from slurmgpu.jobs.table import aligned, table
    from slurmgpu.jobs.table import lines as lines_of

    if as_json:
        for part in _json(report, one_line, why_old):
            click.echo(part, nl=False)
        return
    for note in report.notes if not why_old else ():
        click.echo(f"note: {printable(note)}", err=True)
    cluster = report.cluster or "unknown"
    if not report.jobs and (report.missing or report.unasked):
        return  # a note says so of each
    if not report.jobs:
        click.echo(
            f"No jobs{printable(filters)} on cluster {cluster}: none waiting or running, and none finished in the time "
            "asked for.",
            err=True,
        )
        return
    click.echo(f"cluster {cluster}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}{_age(report, why_old)}")
    arrays = {job.array_job_id for job in report.jobs}
    if opened and not each_task and len(arrays) == 1 and None not in arrays:
        each_task = True
        if (summary := lines_of(report.jobs, since=report.since, chosen=some_tasks)[0].tasks) is not None:
            click.echo(f"array {arrays.pop()}: {summary}")
    rows, lines = table(
        report.jobs,
        report.time,
        live=live,
        each_task=each_task,
        columns=columns,
        since=report.since,
        chosen=some_tasks,
    )
    if why_old:
        rows = _marked(rows)
    if sys.stdout.isatty():
        from rich.console import Console

        _pretty(rows, lines, Console(), as_asked=bool(columns))
        if (question := unexplained(report.jobs)) is not None:
            click.secho(question, dim=True)
    else:
        click.echo(aligned(rows))


def unexplained(jobs: Sequence[JobStatus]) -> str | None:
    """Return the command that explains the newest unexplained failure; None if there is no such job."""
    from slurmgpu.models.run import JobState

    # What Slurm's word for the end leaves open, and a job's logs may tell.
    for_the_logs = (JobState.FAILED, JobState.OUT_OF_MEMORY)
    failed = [job for job in jobs if job.state in for_the_logs and job.cause is None]
    newest = max(failed, key=lambda job: (job.end is not None, job.end), default=None)
    return f"to see why {newest.job_id} failed: slurmgpu why {newest.job_id}" if newest is not None else None


def _age(report: StatusReport, why_old: str) -> str:
    if not why_old:
        return ago(report.age)
    since = span(report.age)
    return f": WHAT SLURM SAID {since} AGO. It does not answer now, and the jobs may have gone on since"


def _marked(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows in which each state is in doubt: who takes a line out of the table still sees it."""
    if "STATE" not in rows[0]:
        return rows
    state = rows[0].index("STATE")
    return [rows[0], *((*row[:state], f"{row[state]}?", *row[state + 1 :]) for row in rows[1:])]


def _json(report: StatusReport, one_line: bool, why_old: str) -> Iterator[str]:
    """Yield the document, job by job.

    What Slurm said before it fell silent is apart from `jobs`, which a program takes as it stands.
    """
    import json

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

    from slurmgpu.jobs.view import colour_of

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
            colour = colour_of(lines[number - 1].job.state)
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


def _columns(given: str | None, settings: Settings) -> tuple[Column, ...]:
    """Return the columns asked for, on the command line or in the settings; none: those that say something."""
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


def _named_tasks(job: JobStatus, selections: list[Selection]) -> list[JobStatus]:
    """Return a record, or of tasks that wait together those that are named one by one."""
    from slurmgpu.jobs.table import only

    means = [one for one in selections if one.matches(job)]
    named = [one.job_id for one in means if one.job_id is not None]
    return only(job, named) if means and len(named) == len(means) else [job]


def _run_for(named: bool) -> Callable[[JobStatus], Run | None]:
    """Return a finder of jobs' runs, in this folder and the job's own; of many jobs a quick one."""
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
