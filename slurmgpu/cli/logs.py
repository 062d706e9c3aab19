"""``slurmgpu logs``: show the log of a job."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.options import named_or_newest, shared_slurm
from slurmgpu.cli.terminal import Say, note, written
from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.interrupts import as_interrupts

if TYPE_CHECKING:
    from slurmgpu.jobs.log_files import Log, Stream
    from slurmgpu.jobs.logs import GrowingLogs, LineFilter, Wanted
    from slurmgpu.jobs.select import Selection
    from slurmgpu.models.run import JobStatus, Run
    from slurmgpu.slurm import Slurm


@click.command("logs")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, shell_complete=jobs_by_tab)
@click.option("-n", "--lines", "last", type=click.IntRange(min=0), help="Only the last lines of each log.")
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="Only what this rank wrote: its own file, or lines that begin with it ([rank3]:, 3:).",
)
@click.option("--since", metavar="WHEN", help="Only lines since: 30m, 12h, 1d, 2w or a date.")
@click.option("--grep", "pattern", metavar="PATTERN", help="Only lines that match; a regular expression.")
@click.option("-C", "--context", type=click.IntRange(min=0), help="Lines around each one that --grep finds.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until the job ends.")
@click.option("--prefix", is_flag=True, help="Begin each line with who wrote it, in place of headers.")
@click.option("--stdout", "stream", flag_value="stdout", help="Leave out logs of standard error alone.")
@click.option("--stderr", "stream", flag_value="stderr", help="Leave out logs of standard output alone.")
@click.option("--path", "paths", is_flag=True, help="Print where the logs are instead.")
@click.pass_context
@as_interrupts()
def command(
    ctx: click.Context,
    jobs: tuple[str, ...],
    last: int | None,
    rank: int | None,
    since: str | None,
    pattern: str | None,
    context: int | None,
    follow: bool,
    prefix: bool,
    stream: Stream | None,
    paths: bool,
) -> None:
    """Show the logs of a job.

    JOB is a job id (112; 112_3 for one task of an array), a job name, or a run directory; without one, your newest
    job. Where a job has several logs (standard error apart, tasks of an array, ranks), a header comes above each.
    """
    from slurmgpu.cli.waiting import wait_at_terminal
    from slurmgpu.jobs.log_files import logs_of
    from slurmgpu.jobs.logs import GrowingLogs
    from slurmgpu.jobs.select import select

    wanted = wanted_lines(rank, since, pattern, context)
    if follow and len(jobs) > 1:
        raise InvalidInput(
            f"--follow shows the logs of one job, and {len(jobs)} are named: {' '.join(jobs)}",
            hint=f"name one of them: slurmgpu logs --follow {jobs[0]}",
        )
    slurm = shared_slurm(ctx)
    jobs = named_or_newest(slurm, jobs)
    selections = select(jobs)
    run_for = run_finder()
    logs = only_wanted(find_logs(slurm, selections, run_for, patient=follow), wanted, stream)
    if paths:
        for log in logs:
            if log.path is None:
                note(f"{log.title}: {log.why}")
            else:
                click.echo(log.path)
        ctx.exit(1 if any(log.path is None for log in logs) else 0)
    growing = GrowingLogs(several=len(logs) > 1, prefixes=prefix, filter_of=wanted_filter(wanted))
    with written(redraws=len(logs) == 1) as write:
        for text, of_log in log_texts(logs, last, growing):
            write(text) if of_log else click.echo(text, nl=False)
    mention_empty([log for log in logs if log.why or not follow], note)
    if follow:
        for lines in filter(None, map(growing.filter_for, logs)):
            lines.go_on()

        def logs_shown(job: JobStatus) -> list[Log]:
            return only_wanted(logs_of(selections[0].run or run_for(job), job), wanted, stream)

        # A run directory is named by its own name, for the path is long.
        is_folder = "/" in jobs[0] or jobs[0] in {".", ".."}
        name = Path(jobs[0]).absolute().name if is_folder else jobs[0]
        wait_at_terminal(slurm, selections[0], name, logs_shown, growing)
    ctx.exit(outcome(logs, wanted, growing, note))


_EMPTY_NAMED, _EMPTY = 3, " is empty"
# Within so many lines one with a time in it says when those before it were written.
_FIRST_TIME_IN = 1000


def run_finder() -> Callable[[JobStatus], Run | None]:
    """Return a finder of jobs' runs, in this folder and the job's own."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import run_of_job

    return partial(run_of_job, runs_of=runs_by_settings(Path.cwd(), os.environ))


def wanted_lines(
    rank: int | None, since: str | None = None, grep: str | None = None, context: int | None = None
) -> Wanted:
    """Return what options want of the lines; InvalidInput for one that is not valid."""
    from slurmgpu.jobs.logs import Wanted
    from slurmgpu.jobs.select import since_moment

    if context is not None and grep is None:
        raise InvalidInput(
            f"--context {context} is about the lines that --grep finds, and there is no --grep",
            hint="slurmgpu logs JOB --grep Error -C 5",
        )
    pattern = None
    if grep is not None:
        try:
            pattern = re.compile(grep)
        except re.error as error:
            raise InvalidInput(
                f"--grep {grep!r} is not a regular expression: {error}",
                hint="put a backslash before a character that stands for itself: --grep 'f\\(x\\)'",
            ) from None
    moment = since_moment(since, datetime.now(timezone.utc)) if since is not None else None
    return Wanted(rank, moment, pattern, min(context or 0, sys.maxsize))


def wanted_filter(wanted: Wanted) -> Callable[[Log], LineFilter | None]:
    """Return a maker of what takes out the lines of a log that are not wanted; it makes None where all are."""
    from slurmgpu.jobs.logs import LineFilter

    def made(log: Log) -> LineFilter | None:
        if wanted.all or log.path is None:
            return None
        return LineFilter(wanted, rank=log.rank, at_first=_first_time(log.path) if wanted.since else None)

    return made


def _first_time(path: Path) -> datetime | None:
    """Return when the first lines of a log were written: the first time in it, else no later than its last change."""
    from slurmgpu.jobs.log_files import lines_of, pieces_of, size_of
    from slurmgpu.jobs.logs import time_of

    now = datetime.now(timezone.utc)
    for number, line in enumerate(lines_of(pieces_of(path, 0, size_of(path)))):
        if moment := time_of(line, now):
            return moment
        if number > _FIRST_TIME_IN:
            break
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    except OSError:
        return None


def only_wanted(logs: list[Log], wanted: Wanted, stream: Stream | None) -> list[Log]:
    """Return the logs of a stream in which the rank may have written, if one is wanted."""
    ranks = (None, wanted.rank)
    return [log for log in logs if log.shows(stream or "both") and (wanted.rank is None or log.rank in ranks)]


def find_logs(
    slurm: Slurm,
    selections: list[Selection],
    run_for: Callable[[JobStatus], Run | None],
    *,
    patient: bool = False,
) -> list[Log]:
    """Return the logs of the jobs; who is ``patient`` asks a Slurm that does not answer again."""
    from slurmgpu.jobs import logs
    from slurmgpu.jobs.select import current_user
    from slurmgpu.jobs.wait import SLOWEST_POLL

    while True:
        try:
            return logs.find_logs(slurm, selections, current_user(), run_for, earlier=not patient)
        except SlurmUnreachable as error:
            if not patient:
                raise
            note(f"{error.message}; asking again in {SLOWEST_POLL:g} s")
            time.sleep(SLOWEST_POLL)


def log_texts(logs: list[Log], last: int | None, growing: GrowingLogs) -> Iterator[tuple[str, bool]]:
    """Yield what is in the logs so far, piece by piece, and whether the log has it or it is a header above."""
    from slurmgpu.jobs.log_files import nothing_in, size_of
    from slurmgpu.jobs.logs import header

    for log in logs:
        if log.path is None:
            continue
        if nothing_in(log):
            growing.add(log)
            continue
        size = size_of(log.path)
        pieces = _pieces(log, log.path, last, size, growing)
        first = next(pieces, "")
        if first and growing.several and not growing.prefixes:
            yield click.style(header(log), bold=True) + "\n", False
        end = "\n"
        for piece in chain([first], pieces) if first else ():
            yield piece, True
            end = piece[-1:]
        if end != "\n" and growing.several:
            yield "\n", False
        growing.add(log, size, shown=bool(first))


def mention_empty(logs: list[Log], say: Say) -> None:
    """Say why there is nothing to show of logs."""
    from slurmgpu.jobs.log_files import nothing_in

    reasons = [(log, nothing_in(log)) for log in logs]
    nothing = [(log, why) for log, why in reasons if why]
    empty = sum(why.endswith(_EMPTY) for _, why in nothing)
    for log, why in nothing:
        if empty <= _EMPTY_NAMED or not why.endswith(_EMPTY):
            say(f"{log.title}: {why}")
    if empty > _EMPTY_NAMED:
        say(f"{empty} logs are empty; --path names them")


def _pieces(log: Log, path: Path, last: int | None, size: int, growing: GrowingLogs) -> Iterator[str]:
    """Yield the text to be shown of a log, up to a position."""
    from slurmgpu.jobs.log_files import last_lines_from, lines_of, pieces_of
    from slurmgpu.jobs.logs import prefixed

    if not size:
        return
    lines = growing.filter_for(log)
    if lines is None:
        pieces = pieces_of(path, 0 if last is None else last_lines_from(path, last, size), size)
        yield from (prefixed(log, line) for line in lines_of(pieces)) if growing.prefixes else pieces
        return
    found = lines.lines(lines_of(pieces_of(path, 0, size)))
    for line in found if last is None else deque(found, maxlen=min(last, sys.maxsize)):
        yield prefixed(log, line) if growing.prefixes else line


def outcome(logs: list[Log], wanted: Wanted, growing: GrowingLogs, say: Say) -> int:
    """Return the exit code for what was shown; ``say`` hears why nothing is shown of logs that are there."""
    there = [log for log in logs if log.path and os.access(log.path, os.R_OK)]
    if growing.shown or not there or wanted.all:
        return 0 if growing.shown or there else 1
    filters = [growing.filter_for(log) for log in there]
    if wanted.rank is not None and not any(one.ranked for one in filters if one is not None):
        say(
            f"no line says that rank {wanted.rank} wrote it: `srun --label`, or `torchrun --log-dir logs` make that known; "
            "without --rank all is shown"
        )
        return 1
    of = [f"of rank {wanted.rank}"] if wanted.rank is not None else []
    of += [f"since {wanted.since.astimezone():%Y-%m-%d %H:%M:%S}"] if wanted.since else []
    of += [f"with {wanted.pattern.pattern!r} in it"] if wanted.pattern else []
    say(f"there is no line {' '.join(of)}")
    return 1
