"""``slurmgpu submit``: submit a job; its id alone on stdout."""

from __future__ import annotations

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
@click.option("--json", "as_json", is_flag=True, help="Print the run's record as JSON.")
def command(
    given: dict[str, object], dry_run: bool, wait: bool, follow: bool, hold: bool, via: str, as_json: bool
) -> None:
    """Submit a job; print its id alone on stdout.

    Everything about the run is kept in its run directory. Exit codes: 1 Slurm refused, 3 nobody knows whether
    Slurm has the job, 4 Slurm does not answer; with --wait or --follow the job's own.
    """
    from slurmgpu.cli.actions.submit import dry_run as show
    from slurmgpu.cli.actions.submit import submit
    from slurmgpu.cli.preparing import prepare
    from slurmgpu.errors import InvalidInput
    from slurmgpu.slurm import Slurm

    if as_json and dry_run:
        raise InvalidInput(
            "--json prints the record of a run, and --dry-run makes none",
            hint="leave one out; slurmgpu plan --json prints the plan",
        )
    prepared = prepare(given, starts="submit")
    slurm = Slurm()
    packed = None
    if via == "submitit":
        from slurmgpu.submission.by_submitit import attach, pack_command

        packed = pack_command(prepared.plan)
        prepared = prepared._replace(plan=packed.plan)
    if dry_run:
        show(prepared, slurm)
        return
    run = submit(prepared, slurm, hold, packed.files if packed is not None else {})
    if as_json:
        click.echo(run.to_json(), nl=False)
    else:
        click.echo(run.job_id)
    if packed is not None:
        attach(packed, run)
    if wait or follow:
        from slurmgpu.cli.actions.awaiting import wait_for_job

        click.get_current_context().exit(wait_for_job(slurm, run, follow))
