"""``slurmgpu report``: what jobs asked for, what they used, and what to ask for next time."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.options import ago, filter_options, filters_in_words, job_filter, shared_slurm, user_of
from slurmgpu.cli.terminal import Say, echo_error
from slurmgpu.errors import InvalidInput, OutcomeUnknown, SlurmGpuError
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.jobs.report.gathering import Reports
    from slurmgpu.jobs.select import Selection
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.run import JobStatus, Run
    from slurmgpu.slurm import Slurm

_LISTED = 25
"""So few jobs get a line each without being asked for."""


@click.command("report")
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=jobs_by_tab)
@click.option("--user", metavar="NAME", help="That user's jobs, as far as the site shows them.")
@click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them.")
@click.option("--since", metavar="WHEN", help="Jobs that ran since: 30m, 12h, 7d, 2w or a date (default 7d).")
@filter_options
@click.option("--list", "each", is_flag=True, help="A line for each job, arrays taken together.")
@click.option(
    "--apply",
    "apply",
    is_flag=True,
    help="Write the proposed request into the job file, and show what changes. A file after it is that job file.",
)
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a page with plots instead."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
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
    each: bool,
    apply: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what jobs used of what they asked for, and what to ask for next time.

    JOB is a job id (112, 112_3), a job name, or a run directory. Without one: all jobs since WHEN, added up by user,
    account, partition and type of GPU.

    It works from Slurm's accounting, for any job. Of jobs of slurmgpu's it also reads the samples and metrics in the run
    directory. What is not known is said to be unknown, and nothing is proposed from it. Exit code 1 when a JOB is named that
    Slurm does not know, 3 when Slurm could not be asked for it.
    """
    # Of ten thousands of jobs none is in a circle, and to look for circles would take long.
    gc.set_threshold(100_000, 50, 50)
    jobs, job_file = _job_file(jobs) if apply else (jobs, None)
    whose, counts = user_of(user, all_users), job_filter(states, partitions, accounts, name)
    begin = moment_of(since)
    _check_options(jobs, apply=apply, html=html, as_json=as_json)
    slurm, cluster = shared_slurm(ctx), cluster_in_use(echo_error)
    found = find_reports(slurm, jobs, user=whose, since=begin, counts=counts, cluster=cluster)
    if html is not None:
        _write_page(found, cluster, html)
    elif as_json:
        from slurmgpu.jobs.report.text import document

        # Block by block: of ten thousand jobs the whole text would take more memory than all figures.
        carbon = cluster.carbon if cluster else None
        pieces = json.JSONEncoder(indent=2).iterencode(document(found, carbon))
        while block := "".join(islice(pieces, 50_000)):
            click.echo(block, nl=False)
        click.echo()
    else:
        by = filters_in_words(states, partitions, accounts, name)
        # Whether this terminal shows block characters.
        bars = sys.stdout.isatty() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        for line in report_lines(found, cluster, each=each, by=by, bars=bars, say=echo_error):
            click.echo(line)
    if apply:
        from slurmgpu.cli.job_file_changes import apply_to_file

        apply_to_file(found, job_file)
    if found.missing:
        ctx.exit(1)
    if found.unasked or (not jobs and not found.available):
        ctx.exit(OutcomeUnknown.exit_code)


def moment_of(since: str | None) -> datetime | None:
    """Return the moment that an option means; None where it is not given."""
    from slurmgpu.jobs.select import since_moment

    return since_moment(since, datetime.now(timezone.utc)) if since is not None else None


def find_reports(
    slurm: Slurm,
    jobs: Sequence[str],
    *,
    user: str | None,
    since: datetime | None,
    counts: Callable[[JobStatus], bool],
    cluster: Cluster | None,
) -> Reports:
    """Return what the jobs that are named used of what they asked for, or (none) all since a moment."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.report.gathering import DEFAULT_SINCE, report_on_jobs, report_since
    from slurmgpu.jobs.runs import run_of_job, runs_that_ended
    from slurmgpu.jobs.select import select

    runs_of = runs_by_settings(Path.cwd(), os.environ)
    if jobs:
        selections = select(jobs)
        run_for = _find_once(selections, partial(run_of_job, runs_of=runs_of))
        return report_on_jobs(
            slurm, selections, user=user, since=since, run_for=run_for, cluster=cluster, counts=counts
        )
    since = since or datetime.now(timezone.utc) - DEFAULT_SINCE
    run_for = _find_once((), runs_that_ended(runs_of))
    return report_since(slurm, since, user=user, run_for=run_for, cluster=cluster, counts=counts)


def _job_file(words: tuple[str, ...]) -> tuple[tuple[str, ...], Path | None]:
    """Return the JOB words, and the job file that stands among them."""
    files = [word for word in words if word.endswith((".yaml", ".yml"))]
    if len(files) > 1:
        raise InvalidInput(
            f"--apply: {' and '.join(files)} are two job files", hint="give one job and its job file"
        )
    if files and not Path(files[0]).is_file():
        raise InvalidInput(f"--apply {files[0]}: there is no such file", hint="give the path of the job file")
    return tuple(word for word in words if word not in files), Path(files[0]) if files else None


def _check_options(jobs: tuple[str, ...], *, apply: bool, html: Path | None, as_json: bool) -> None:
    if html is not None and as_json:
        raise InvalidInput("--html and --json are both given", hint="keep one of the two")
    if apply and len(jobs) != 1:
        raise InvalidInput(
            f"--apply: {' and '.join(jobs[:3]) or 'no jobs'} are named, where one job is expected",
            hint="name the job whose request is to be changed: slurmgpu report JOB --apply; a job file ends in .yaml",
        )
    if apply and as_json:
        raise InvalidInput("--apply and --json are both given", hint="keep one of the two")
    folder = html.parent if html is not None else None
    if html is not None and (html.is_dir() or (folder and not folder.is_dir())):
        what = "is a folder" if html.is_dir() else f"there is no folder {folder}"
        raise InvalidInput(
            f"--html {html}: {what}", hint="give the name of a file, such as --html report.html"
        )


def cluster_in_use(say: Say) -> Cluster | None:
    """Return the profile that is in use here, for what it says of limits and carbon; a report needs none."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings

    try:
        return choose_cluster(None, load_settings(Path.cwd()), os.environ)[0]
    except SlurmGpuError as error:
        say(f"note: no profile is used: {printable(error.message)}")
        return None


def _find_once(
    selections: Sequence[Selection], otherwise: Callable[[JobStatus], Run | None]
) -> Callable[[JobStatus], Run | None]:
    """Return a finder of jobs' runs that looks for each once; a record that cannot be read is none."""
    known: dict[str, Run | None] = {}

    def find(job: JobStatus) -> Run | None:
        key = f"{job.cluster} {job.job_id} {job.submit}"
        if key not in known:
            named = (one.run for one in selections if one.run and one.matches(job))
            try:
                known[key] = next(named, None) or otherwise(job)
            except (SlurmGpuError, OSError):
                known[key] = None
        return known[key]

    return find


def report_lines(
    found: Reports, cluster: Cluster | None, *, each: bool, by: str, say: Say, bars: bool = False
) -> Iterator[str]:
    """Yield the reports for people; notes on them go to ``say``.

    ``each``: a line for each job; ``by``: the filters, in words; ``bars``: draw shares with block characters.
    """
    from slurmgpu.jobs.report import text
    from slurmgpu.jobs.report.text import summed

    for note in found.notes:
        say(f"note: {printable(note)}")
    name = found.cluster or "unknown"
    if not found.jobs:
        if not found.missing and not found.unasked:
            said = "No jobs ran" if found.available else "Nothing is known of jobs that ran"
            since = f" since {found.since.astimezone():%Y-%m-%d %H:%M}" if found.since else ""
            say(f"{said}{printable(by)} on cluster {name}{since}.")
        return
    since = f", jobs since {found.since.astimezone():%Y-%m-%d %H:%M}" if found.since else ""
    yield f"cluster {name}, {found.time.astimezone():%Y-%m-%d %H:%M:%S}{ago(found.age)}{since}\n"
    blocks: list[list[str]] = []
    if found.since is None and not each:
        from slurmgpu.runs.bench.memory import measured_of_run

        for one in found.jobs:
            told = (
                [printable(f"  {line}") for line in measured_of_run(one.run)] if one.run is not None else []
            )
            lines = text.job_lines(one, cluster.carbon if cluster else None, bars=bars)
            blocks.append([*lines, *(["", *told] if told else [])])
    else:
        if found.since is not None:
            blocks.append(text.summary_lines(summed(found.each, found.jobs)))
        if each or len(found.jobs) <= _LISTED:
            blocks.append(text.job_table(found.jobs))
    yield text.joined(blocks)


def _write_page(found: Reports, cluster: Cluster | None, path: Path) -> None:
    from slurmgpu.files.trust import write_atomically
    from slurmgpu.jobs.report.page import page

    for note in found.notes:
        click.echo(f"note: {printable(note)}", err=True)
    try:
        made = page(found, cluster.carbon if cluster else None)
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout, is written to, and never replaced
            path.write_text(made, encoding="utf-8")
        else:
            write_atomically(path, made)
    except OSError as error:
        raise InvalidInput(
            f"--html {path}: cannot be written: {error.strerror}", hint="give a file that you may write"
        ) from None
    click.echo(printable(str(path)))
