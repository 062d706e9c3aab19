"""``slurmgpu doctor``: whether this place is fit to run the user's jobs, and what to do where it is not."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--on-gpu", is_flag=True, help="Probe the nodes that such a job gets, by a job of some minutes."
)
@click.option(
    "--within",
    metavar="MINUTES",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="With --on-gpu: cancel the job after so long.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**options: Any) -> None:
    """Find out whether this cluster is ready to run your jobs, and what to do if it is not.

    Looks at Slurm, accounts, the cluster's profile, modules, Python, torch and folders on this machine, in the job's
    environment where one is named. With --on-gpu a short job looks at the nodes instead: their GPUs, folders, the
    processes' share, and the way between the nodes. Exit codes: 0 no failure was found; 1 one was.
    """
    from slurmgpu.cli.actions.doctor import act

    act(**options)
