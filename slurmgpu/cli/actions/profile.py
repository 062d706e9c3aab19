"""What ``slurmgpu profile`` does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from slurmgpu.cli.preparing import note
from slurmgpu.cli.shared_answers import shared_slurm
from slurmgpu.files.settings import load_settings, runs_by_settings
from slurmgpu.jobs.runs import find_run, newest_run
from slurmgpu.jobs.select import current_user
from slurmgpu.printable import printable
from slurmgpu.runs.profiles import Judged, judge_run, judge_trace, verdict_lines


def act(ctx: click.Context, run: str | None, as_json: bool) -> None:
    judged = _judged(ctx, run)
    for remark in judged.notes:
        note(printable(remark))
    if as_json:
        click.echo(json.dumps({"path": str(judged.path), **judged.verdict}, indent=2))
        return
    click.echo(printable(str(judged.path)))
    for line in verdict_lines(judged.verdict):
        head = line.startswith(("verdict:", "also:"))
        click.echo(click.style(printable(line), bold=True) if head else printable(line))


def _judged(ctx: click.Context, run: str | None) -> Judged:
    if run is not None and Path(run).is_file():
        return judge_trace(Path(run))
    runs_of = runs_by_settings(Path.cwd(), os.environ)
    if run is None:
        return judge_run(newest_run(runs_of(Path.cwd())))
    slurm = shared_slurm(ctx, load_settings(Path.cwd(), os.environ).settings)
    return judge_run(find_run(slurm, run, runs_of, current_user()))
