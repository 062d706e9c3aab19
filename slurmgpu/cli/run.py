"""``slurmgpu run``: the rendered script itself, on this machine, without Slurm; ``slurmgpu train`` runs it the same way."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, device_option, job_options, run_dir_option


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Processes in all (default: as the job has them, at most one per CPU).",
)
@click.option(
    "--pretend-nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes to pretend."
)
@click.option("--steps", type=click.IntRange(1), help="Stop a training task after so many optimizer steps.")
@click.option(
    "--here", is_flag=True, help="Run on this machine although it looks like a login node; stays small."
)
@device_option
@run_dir_option
def command(**options: Any) -> None:
    """Run the rendered script, byte for byte, on this machine, without Slurm.

    Inside a job (salloc, srun --pty bash) it uses the job's GPUs on this node, elsewhere the CPU. What else belongs to
    Slurm or the site (srun, modules, containers) is stood in for, and the output says so. Ends with the script's own
    exit code.
    """
    from slurmgpu.cli.running_here import act_run

    act_run(**options)
