"""`slurmgpu cancel`: end jobs, and say what became of each."""

from __future__ import annotations

from pathlib import Path

import click

from slurmgpu.cli.completing import live_jobs
from slurmgpu.cli.options import own_slurm
from slurmgpu.cli.terminal import note
from slurmgpu.errors import OutcomeUnknown, SlurmGpuError, SlurmRefused
from slurmgpu.printable import printable


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=live_jobs)
@click.option("--signal", metavar="NAME", help="Only send this signal to the jobs' steps, such as USR1.")
@click.pass_context
def command(ctx: click.Context, jobs: tuple[str, ...], signal: str | None) -> None:
    """Cancel jobs and wait a few seconds until the queue shows that they end.

    JOB is a job id (112; 112_3 for one task of an array), the name of jobs of mine, or a run directory.
    """
    from slurmgpu.jobs.cancel import cancel
    from slurmgpu.jobs.select import current_user, run_of, select
    from slurmgpu.runs.checkpoints import newest_of_tasks

    failed, unknown = [], []
    for result in cancel(own_slurm(ctx), select(jobs), user=current_user(), signal=signal):
        message = printable(result.message)
        if result.outcome in ("missing", "refused"):
            failed.append(message)
            continue
        if result.outcome == "unknown":
            unknown.append(message)
            continue
        click.echo(message)
        # The command that starts the job again, where there is something to go on from.
        run = next((run for job in result.jobs if (run := run_of(job)) is not None), None)
        newest = newest_of_tasks(Path(run.run_dir)) if run is not None else {}
        if run is not None and list(newest) == [""]:
            # While its last processes run, it may save once more.
            later = " or later" if result.outcome == "ending" else ""
            note(f"`slurmgpu resume {run.job_id}` continues from step {newest[''].step}{later}")
        elif run is not None and newest:
            note(f"`slurmgpu resume {run.job_id}` starts the tasks that are not done")
    if failed or unknown:
        error: type[SlurmGpuError] = SlurmRefused if failed else OutcomeUnknown
        raise error("\n".join(failed + unknown), hint="See which jobs there are with: slurmgpu status")
