"""``slurmgpu profile``: what takes the time of a training's steps, and what to change."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import runs


@click.command("profile")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Say what takes the time of a training's steps, and what to change.

    It reads the profile that a training with `profile: true` left, and its metrics: which share of a step goes into waiting
    for data, copying, computing, small operators, communicating, evaluating and saving, what shows it, and what to change.
    Where none of these stands out, it says so.

    RUN is a run directory, a job id (112_3 for one task of an array) or a job name; without it, the newest run here. It
    may also be a trace of torch's profiler from elsewhere, such as worker0.pt.trace.json.gz. Exit code 1 when there is no
    profile.
    """
    from slurmgpu.cli.actions.profile import act

    act(ctx, **given)
