"""`slurmgpu status`: the queue, live use and finished jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from slurmgpu.monitoring.status import StatusReport

__all__ = ["command"]

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

_MAY_FOLD = {"NAME", "NODES", "WHEN"}


@click.command("status")
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them.")
@click.option("--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d).")
@click.option("--live", is_flag=True, help="Ask the nodes what running jobs use (sstat).")
@click.option("--watch", is_flag=True, help="Ask again every 30 s; ends when all JOBs named have finished.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document (with --watch: one a line).")
@click.pass_context
def command(
    ctx: click.Context,
    jobs: tuple[str, ...],
    all_users: bool,
    since: str | None,
    live: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Show my jobs: waiting, running, and finished in the last day.

    JOB is a job id (112, 112_3), a job name, or a run directory. Jobs named by id are found whatever their
    age; exit code 1 when one is named that Slurm does not know.
    """
    import time
    from datetime import datetime, timezone

    from slurmgpu.monitoring.select import current_user, select, since_moment
    from slurmgpu.monitoring.status import status
    from slurmgpu.slurm.call import Slurm

    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()
    selections = select(jobs)
    user = None if all_users else current_user()
    while True:
        moment = since_moment(since, datetime.now(timezone.utc)) if since else None
        report = status(slurm, user=user, selections=selections, since=moment, live=live)
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
        _show(report, live=live, as_json=as_json, one_line=watch)
        if report.missing and (not watch or len(report.missing) == len(selections)):
            ctx.exit(1)  # nothing of these will ever change
        if not watch or (selections and all(job.state.is_final for job in report.jobs)):
            return
        try:
            time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            return


def _show(report: StatusReport, *, live: bool, as_json: bool, one_line: bool) -> None:
    from slurmgpu.monitoring.table import plain, printable

    if as_json:
        click.echo(_json(report, one_line))
        return
    for note in report.notes:
        click.echo(f"note: {printable(note)}", err=True)
    cluster = report.cluster or "unknown"
    if not report.jobs:
        click.echo(
            f"No jobs on cluster {cluster}, waiting, running or finished in the time asked for.", err=True
        )
        return
    click.echo(f"cluster {cluster}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}")
    if sys.stdout.isatty():
        from rich.console import Console

        _pretty(report, live, Console())
    else:
        click.echo(plain(report.jobs, report.time, live=live))


def _json(report: StatusReport, one_line: bool) -> str:
    import json

    document = {
        "schema": "slurmgpu.status/1",
        "cluster": report.cluster,
        "time": report.time.isoformat(timespec="seconds"),
        "jobs": [job.model_dump(mode="json") for job in report.jobs],
        "notes": report.notes,
    }
    return json.dumps(document, indent=None if one_line else 2)


def _pretty(report: StatusReport, live: bool, console: Console) -> None:
    """The table in colour; where the terminal is too narrow, reasons follow below it and names fold."""
    from rich.table import Table
    from rich.text import Text

    from slurmgpu.monitoring.table import cells, header, plain

    names = header(live)
    rows = [cells(job, live, report.time) for job in report.jobs]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    wide = sum(widths) + 2 * (len(names) - 1) <= console.width
    if not wide:
        names = names[:-1]
        least = [
            min(8, width) if name in _MAY_FOLD else width for name, width in zip(names, widths, strict=False)
        ]
        if sum(least) + len(names) - 1 > console.width:
            console.print(Text(plain(report.jobs, report.time, live=live)), soft_wrap=True)
            return
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name not in _MAY_FOLD)
    for job, row in zip(report.jobs, rows, strict=True):
        texts = [Text(cell) for cell in row[: len(names)]]
        texts[2].stylize(_COLOURS.get(job.state.value, "red"))
        table.add_row(*texts)
    console.print(table)
    if not wide:
        for row in rows:
            if row[-1] != "-":
                console.print(Text(f"{row[0]}: {row[-1]}"), soft_wrap=True)
