"""`slurmgpu cancel`: end jobs, and say what became of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import live_jobs
from slurmgpu.cli.options import own_slurm
from slurmgpu.cli.terminal import note
from slurmgpu.errors import OutcomeUnknown, SlurmGpuError, SlurmRefused
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.jobs.cancel import Cancellation


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=live_jobs)
@click.option("--signal", metavar="NAME", help="Only send this signal to the jobs' steps, such as USR1.")
@click.pass_context
def command(ctx: click.Context, jobs: tuple[str, ...], signal: str | None) -> None:
    """Cancel jobs and wait a few seconds until the queue shows that they end.

    JOB is a job id (112; 112_3 for one task of an array), the name of jobs of mine, or a run directory.
    """
    from slurmgpu.jobs.cancel import cancel
    from slurmgpu.jobs.select import current_user, select

    slurm = own_slurm(ctx)
    results = cancel(slurm, select(jobs), user=current_user(), signal=signal)
    problems: dict[str, list[str]] = {"failed": [], "unknown": []}
    for result in results:
        kind = {"missing": "failed", "refused": "failed", "unknown": "unknown"}.get(result.outcome)
        if kind is None:
            click.echo(printable(result.message))
            _say_how_to_go_on(result)
        else:
            problems[kind].append(printable(result.message))
    error: type[SlurmGpuError] = SlurmRefused if problems["failed"] else OutcomeUnknown
    messages = problems["failed"] + problems["unknown"]
    if messages:
        raise error("\n".join(messages), hint="See which jobs there are with: slurmgpu status")


def _say_how_to_go_on(result: Cancellation) -> None:
    """Name the command that starts the job again, where there is something to go on from."""
    from slurmgpu.jobs.select import run_of
    from slurmgpu.runs.checkpoints import newest_of_tasks

    run = next((run for job in result.jobs if (run := run_of(job)) is not None), None)
    newest = newest_of_tasks(Path(run.run_dir)) if run is not None else {}
    if run is None or not newest:
        return
    again = f"`slurmgpu resume {run.job_id}`"
    if list(newest) == [""]:
        # While its last processes run, it may save once more.
        later = " or later" if result.outcome == "ending" else ""
        note(f"{again} continues from step {newest[''].step}{later}")
    else:
        note(f"{again} starts the tasks that are not done")
