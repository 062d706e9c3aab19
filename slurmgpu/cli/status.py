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
from slurmgpu.cli.options import ago, filter_options, filters_in_words, job_filter, shared_slurm, user_of
from slurmgpu.cli.terminal import Say, echo_error
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
    from slurmgpu.slurm import Slurm

# What many users' watches may cost a controller together sets the pace, not what one would like to see.
WATCH_SECONDS = 30.0
# On a narrow terminal; --json always has everything.
_LONG = 16
_ROOM_FOR_REASONS = 30


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
    from slurmgpu.files.settings import load_settings
    from slurmgpu.jobs.select import select
    from slurmgpu.jobs.table import in_order

    # Of tens of thousands of records none is in a circle, and to look for circles would take as long as to read them.
    gc.set_threshold(100_000, 50, 50)
    settings = load_settings(Path.cwd(), os.environ).settings
    shown_columns = chosen_columns(columns, settings)
    counts = job_filter(states, partitions, accounts, name)
    if sort:
        in_order([], sort, datetime.now(timezone.utc))
    slurm = shared_slurm(ctx, settings)
    pace = max(WATCH_SECONDS, slurm.shelf.floor if slurm.shelf is not None else 0.0)
    if watch and slurm.shelf is not None:
        slurm.shelf.good_for = pace  # a watch's picture is never older than that
    selections = select(jobs)
    look = partial(
        find_jobs,
        slurm,
        selections,
        user=user_of(user, all_users),
        since=since,
        live=live,
        columns=shown_columns,
        run_for=run_finder(named=bool(selections)),
    )
    clears = watch and not as_json and sys.stdout.isatty()

    def show(report: StatusReport, why_old: str = "") -> None:
        if clears:
            click.clear()
        report = only_chosen(report, selections, counts, sort)
        if as_json:
            for part in _json(report, one_line=watch, why_old=why_old):
                click.echo(part, nl=False)
            return
        lines = report_lines(
            report,
            selections,
            live=live,
            each_task=each_task,
            columns=shown_columns,
            by_state=states is not None,
            filters=filters_in_words(states, partitions, accounts, name),
            why_old=why_old,
            on_terminal=sys.stdout.isatty(),
            say=echo_error,
        )
        for line in lines:
            click.echo(line)

    while True:
        try:
            report = look()
        except SlurmUnreachable as error:
            known = look(old=True)
            if known is not None:
                show(known, error.message)
            elif clears:
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


def find_jobs(
    slurm: Slurm,
    selections: list[Selection],
    *,
    user: str | None,
    since: str | None,
    columns: Sequence[Column],
    run_for: Callable[[JobStatus], Run | None],
    live: bool = False,
    old: bool = False,
) -> StatusReport | None:
    """Return what Slurm and the run directories tell of the jobs; with ``old``, what Slurm said last, if it is known."""
    from slurmgpu.jobs.look import last_known, status
    from slurmgpu.jobs.select import since_moment

    moment = since_moment(since, datetime.now(timezone.utc)) if since else None
    detail: Detail = "use" if any(column.is_use for column in columns) else "usual"
    if old:
        return last_known(slurm, user=user, selections=selections, since=moment, detail=detail)
    return status(
        slurm, user=user, selections=selections, since=moment, live=live, detail=detail, run_for=run_for
    )


def run_finder(named: bool) -> Callable[[JobStatus], Run | None]:
    """Return a finder of jobs' runs, in this folder and the job's own; of many jobs a quick one."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import run_of_job, runs_that_ended

    @cache
    def finder() -> Callable[[JobStatus], Run | None]:
        runs_of = runs_by_settings(Path.cwd(), os.environ)
        return partial(run_of_job, runs_of=runs_of) if named else runs_that_ended(runs_of)

    return lambda job: finder()(job)


def only_chosen(
    report: StatusReport,
    selections: list[Selection],
    counts: Callable[[JobStatus], bool],
    sort: str | None = None,
) -> StatusReport:
    """Return the report with the jobs that count, in order; of tasks that wait together, those named one by one."""
    from dataclasses import replace

    from slurmgpu.jobs.table import in_order, only

    found: list[JobStatus] = []
    for job in filter(counts, report.jobs):
        means = [one for one in selections if one.matches(job)]
        named = [one.job_id for one in means if one.job_id is not None]
        found += only(job, named) if means and len(named) == len(means) else [job]
    return replace(report, jobs=in_order(found, sort, report.time) if sort else found)


def chosen_columns(given: str | None, settings: Settings) -> tuple[Column, ...]:
    """Return the columns asked for, on the command line or in the settings; none: those that say something."""
    from slurmgpu.jobs.table import COLUMNS, columns_of

    usual = columns_of(settings.status_columns, "status_columns in the settings")
    if given is None:
        return usual
    named = columns_of(given.removeprefix("+").split(","), "--columns")
    if not given.startswith("+"):
        return named
    usual = usual or tuple(column for column in COLUMNS if column.shown([], False))
    added = [column for column in named if column not in usual]
    return (*usual[:-1], *added, usual[-1])  # the reason is the longest, and last


def report_lines(
    report: StatusReport,
    selections: Sequence[Selection],
    *,
    columns: Sequence[Column],
    say: Say,
    live: bool = False,
    each_task: bool = False,
    by_state: bool = False,
    filters: str = "",
    why_old: str = "",
    on_terminal: bool = False,
) -> Iterator[str]:
    """Yield a report as a table for people; notes on it go to ``say``.

    ``why_old``: why it is what Slurm said last, and not what it says now. ``by_state``: tasks in other states are left out.
    """
    from slurmgpu.columns import aligned
    from slurmgpu.jobs.table import lines as lines_of
    from slurmgpu.jobs.table import table

    for note in report.notes if not why_old else ():
        say(f"note: {printable(note)}")
    cluster = report.cluster or "unknown"
    if not report.jobs:
        if not report.missing and not report.unasked:  # else a note says so of each
            say(
                f"No jobs{printable(filters)} on cluster {cluster}: none waiting or running, and none finished in the time "
                "asked for."
            )
        return
    age = ago(report.age)
    if why_old:
        since = span(report.age)
        age = f": WHAT SLURM SAID {since} AGO. It does not answer now, and the jobs may have gone on since"
    yield f"cluster {cluster}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}{age}"
    ids = [one.id for one in selections]
    some_tasks = by_state or any(one.job_id and one.job_id.tasks for one in selections)
    arrays = {job.array_job_id for job in report.jobs}
    # An array, or some of its tasks, are all that is named: each task has a line of its own then.
    tasks_alone = bool(ids) and all(one is not None and one.tasks is not None for one in ids)
    opened = tasks_alone or (len(ids) == 1 and ids[0] is not None)
    if opened and not each_task and len(arrays) == 1 and None not in arrays:
        each_task = True
        if (summary := lines_of(report.jobs, since=report.since, chosen=some_tasks)[0].tasks) is not None:
            yield f"array {arrays.pop()}: {summary}"
    rows, lines = table(
        report.jobs,
        report.time,
        live=live,
        each_task=each_task,
        columns=columns,
        since=report.since,
        chosen=some_tasks,
    )
    if why_old and "STATE" in rows[0]:  # each state is in doubt, also for who takes one line out of the table
        state = rows[0].index("STATE")
        rows = [rows[0], *((*row[:state], f"{row[state]}?", *row[state + 1 :]) for row in rows[1:])]
    if not on_terminal:
        yield from aligned(rows)
        return
    from rich.console import Console

    console = Console()
    with console.capture() as printed:
        _pretty(rows, lines, console, as_asked=bool(columns))
    yield printed.get().removesuffix("\n")
    if (question := unexplained(report.jobs)) is not None:
        yield click.style(question, dim=True)


def unexplained(jobs: Sequence[JobStatus]) -> str | None:
    """Return the command that explains the newest unexplained failure; None if there is no such job."""
    from slurmgpu.models.run import JobState

    # What Slurm's word for the end leaves open, and a job's logs may tell.
    for_the_logs = (JobState.FAILED, JobState.OUT_OF_MEMORY)
    failed = [job for job in jobs if job.state in for_the_logs and job.cause is None]
    newest = max(failed, key=lambda job: (job.end is not None, job.end), default=None)
    return f"to see why {newest.job_id} failed: slurmgpu why {newest.job_id}" if newest is not None else None


def _json(report: StatusReport, *, one_line: bool, why_old: str) -> Iterator[str]:
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
    """Print the table in colour, as wide as the terminal: the reason beside a job where there is room, else below it.

    Where even that is too wide, long names are cut, then columns are left out, those first that matter least; none of those
    that were asked for.
    """
    from rich.text import Text

    from slurmgpu.jobs.table import COLUMNS
    from slurmgpu.jobs.view import colour_of

    rows = [list(row) for row in found]
    last = rows[0][-1] == "REASON"
    reasons = [row.pop() if last else "" for row in rows]
    if not rows[0]:  # the reason is all that was asked for
        rows, reasons = [[text] for text in reasons], ["" for _ in reasons]

    def widths() -> list[int]:
        return [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]

    beside = sum(widths()) + min(max(map(len, reasons)), _ROOM_FOR_REASONS) <= console.width
    if not beside and not as_asked:
        for name in ("NODES", "NAME"):
            column = rows[0].index(name)
            for row in rows:
                if len(row[column]) > _LONG:
                    row[column] = row[column][: _LONG - 3] + "..."
        for _, name in sorted((one.left_out, one.name) for one in COLUMNS if one.left_out is not None):
            if sum(widths()) - 2 > console.width and name in rows[0]:
                column = rows[0].index(name)
                for row in rows:
                    del row[column]
    wide = widths()
    state = rows[0].index("STATE") if "STATE" in rows[0] else None
    indent = sum(wide) if beside else 2
    for number, (row, reason) in enumerate(zip(rows, reasons, strict=True)):
        text = Text("".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True))[:-2])
        if number == 0:
            text.stylize("bold")
            reason = reason if beside else ""
        elif state is not None:
            start = sum(wide[:state])
            text.stylize(colour_of(lines[number - 1].job.state), start, start + len(row[state]))
        reason = "" if reason == "-" and not beside else reason
        room = max(console.width - indent, 20)
        folded = textwrap.wrap(reason, room, break_long_words=False, break_on_hyphens=False)
        if beside and folded:
            text.append(f"  {folded.pop(0)}")
        text.rstrip()
        console.print(text, soft_wrap=True)
        for part in folded:
            console.print(Text(" " * indent + part), soft_wrap=True)


def _paused(seconds: float) -> bool:
    """Wait until the next look; False where the person ends the watch."""
    try:
        time.sleep(seconds)
    except KeyboardInterrupt as error:
        if type(error) is not KeyboardInterrupt:
            raise  # TERM, which is no person's way to end it
        return False
    return True
