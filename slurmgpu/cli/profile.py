"""``slurmgpu profile``: what takes the time of a training's steps, and what to change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from slurmgpu.cli.completing import runs
from slurmgpu.cli.options import shared_slurm
from slurmgpu.cli.terminal import note
from slurmgpu.printable import printable


@click.command("profile")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, run: str | None, as_json: bool) -> None:
    """Say what takes the time of a training's steps, and what to change.

    It reads the profile that a training with `profile: true` left, and its metrics: which share of a step goes into waiting
    for data, copying, computing, small operators, communicating, evaluating and saving, what shows it, and what to change.
    Where none of these stands out, it says so.

    RUN is a run directory, a job id (112_3 for one task of an array) or a job name; without it, the newest run here. It
    may also be a trace of torch's profiler from elsewhere, such as worker0.pt.trace.json.gz. Exit code 1 when there is no
    profile.
    """
    from slurmgpu.files.settings import load_settings, runs_by_settings
    from slurmgpu.jobs.runs import find_run, newest_run
    from slurmgpu.jobs.select import current_user
    from slurmgpu.runs.profiles import judge_run, judge_trace, verdict_lines

    if run is not None and Path(run).is_file():
        judged = judge_trace(Path(run))
    else:
        runs_of = runs_by_settings(Path.cwd(), os.environ)
        if run is None:
            run_dir = newest_run(runs_of(Path.cwd()))
        else:
            slurm = shared_slurm(ctx, load_settings(Path.cwd(), os.environ).settings)
            run_dir = find_run(slurm, run, runs_of, current_user())
        judged = judge_run(run_dir)
    for remark in judged.notes:
        note(printable(remark))
    if as_json:
        click.echo(json.dumps({"path": str(judged.path), **judged.verdict}, indent=2))
        return
    click.echo(printable(str(judged.path)))
    for line in verdict_lines(judged.verdict):
        head = line.startswith(("verdict:", "also:"))
        click.echo(click.style(printable(line), bold=True) if head else printable(line))
