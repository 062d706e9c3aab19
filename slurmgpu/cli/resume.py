"""``slurmgpu resume``: submit a run's job again, in the same run directory, so that it goes on."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import runs
from slurmgpu.cli.job_options import JobCommand, change_options


@click.command("resume", cls=JobCommand)
@click.argument("run", metavar="RUN", shell_complete=runs)
@change_options
@click.option("--wait", is_flag=True, help="Wait for the job; end with its exit code.")
@click.option("--follow", is_flag=True, help="Wait, and print the job's logs meanwhile.")
@click.option("-H", "--hold", is_flag=True, help="Submit it held; `scontrol release ID` lets it go.")
@click.option("--json", "as_json", is_flag=True, help="Print the run's record as JSON.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Submit a run's job again, in the same run directory: a training goes on from its newest checkpoint.

    RUN is a run directory, a job id (112_3 for one task of an array) or a job name, which means its newest run. Without
    options the same script is submitted; with any, the job is planned anew with these on top (-t 4:00:00, --set
    train.epochs=20, or another command after --, as for submit). Of an array the tasks start that are not
    done; --array names others.

    Exit codes: 1 the run's job has not ended, is done, or Slurm refused; 3 nobody can say whether it has ended; 4 Slurm
    does not answer; with --wait or --follow the job's own.
    """
    from slurmgpu.cli.actions.resume import act

    act(ctx, **given)
