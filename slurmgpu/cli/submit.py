"""``slurmgpu submit``: submit a job; its id alone on stdout."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option("--dry-run", is_flag=True, help="Show script, plan and Slurm's own estimate; submit nothing.")
@click.option("--wait", is_flag=True, help="Wait for the job; end with its exit code.")
@click.option("--follow", is_flag=True, help="Wait, and print the job's logs meanwhile.")
@click.option("-H", "--hold", is_flag=True, help="Submit it held; `scontrol release ID` lets it go.")
@click.option(
    "--via",
    type=click.Choice(["sbatch", "submitit"]),
    default="sbatch",
    help="Who submits.",
    show_default=True,
)
@click.option(
    "--pull/--no-pull",
    default=True,
    help="Pull or build the job's image first, if it is not there; --no-pull leaves it to the nodes.",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print the run's record as JSON.")
def command(**options: Any) -> None:
    """Submit a job; print its id alone on stdout.

    Everything about the run is kept in its run directory. Exit codes: 1 Slurm refused, 3 nobody knows whether
    Slurm has the job, 4 Slurm does not answer; with --wait or --follow the job's own.
    """
    from slurmgpu.cli.submitting import act_submit as act

    options["given"]["pull"] = options.pop("pull")
    act(**options)
