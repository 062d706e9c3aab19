"""What ``slurmgpu status`` does."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from slurmgpu.cli.actions.status_text import View, show
from slurmgpu.cli.filters import chosen, named, user_of
from slurmgpu.cli.shared_answers import shared_slurm
from slurmgpu.errors import OutcomeUnknown, SlurmUnreachable
from slurmgpu.files.settings import Settings, load_settings, runs_by_settings
from slurmgpu.jobs.arrays import only
from slurmgpu.jobs.look import Detail, StatusReport, last_known, status
from slurmgpu.jobs.runs import run_of_job, runs_that_ended
from slurmgpu.jobs.select import Selection, select, since_moment
from slurmgpu.jobs.table import COLUMNS, Column, columns_of, in_order
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from slurmgpu.cli.asked import How, Which

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
        return last_known(
            slurm, user=self.user, selections=self.selections, since=self._moment(), detail=self.detail
        )

    def _moment(self) -> datetime | None:
        return since_moment(self.since, datetime.now(timezone.utc)) if self.since else None


def act(ctx: click.Context, jobs: tuple[str, ...], which: Which, how: How, live: bool, watch: bool) -> None:
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


def _pace(slurm: Slurm) -> float:
    """The seconds between two looks of a watch."""
    return max(WATCH_SECONDS, slurm.shelf.floor if slurm.shelf is not None else 0.0)


def _clear(watch: bool, as_json: bool) -> None:
    if watch and not as_json and sys.stdout.isatty():
        click.clear()


def _columns(given: str | None, settings: Settings) -> tuple[Column, ...]:
    """The columns asked for, on the command line or in the settings; none: those that say something."""
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
    means = [one for one in selections if one.matches(job)]
    named = [one.job_id for one in means if one.job_id is not None]
    return only(job, named) if means and len(named) == len(means) else [job]


def _run_for(named: bool) -> Callable[[JobStatus], Run | None]:
    """What finds the run of a job among those of this folder and of the job's own; of many jobs, what is quick."""

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
