"""``slurmgpu plan``: print the plan of a job with its reasons."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--when", is_flag=True, help="Ask Slurm when it would start, on at most 5 partitions that it fits."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**options: Any) -> None:
    """Print the plan of a job with its reasons; say what does not fit, and what would."""
    from slurmgpu.cli.submitting import act_plan as act

    act(**options)
