"""``slurmgpu run``: the rendered script itself, on this machine, without Slurm; ``slurmgpu train`` runs it the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, device_option, job_options, run_dir_option
from slurmgpu.cli.terminal import note


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
def command(
    given: dict[str, Any],
    processes: int | None,
    pretend_nodes: int,
    steps: int | None,
    here: bool,
    on_gpus: bool | None,
    run_dir: Path | None,
) -> None:
    """Run the rendered script, byte for byte, on this machine, without Slurm.

    Inside a job (salloc, srun --pty bash) it uses the job's GPUs on this node, elsewhere the CPU. What else belongs to
    Slurm or the site (srun, modules, containers) is stood in for, and the output says so. Ends with the script's own
    exit code.
    """
    from slurmgpu.runs.here import on_login_node, run_prepared
    from slurmgpu.runs.prepare import prepare

    prepared = prepare(given, note, starts="run")
    code = run_prepared(
        prepared,
        note,
        login_node=on_login_node(here),
        processes=processes,
        nodes=pretend_nodes,
        steps=steps,
        on_gpus=on_gpus,
        run_dir=run_dir,
    )
    click.get_current_context().exit(code)
