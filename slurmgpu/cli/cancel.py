"""`slurmgpu cancel`: end jobs, and say what became of each."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--signal", metavar="NAME", help="Only send this signal to the jobs' steps, such as USR1.")
@click.pass_context
def command(ctx: click.Context, jobs: tuple[str, ...], signal: str | None) -> None:
    """Cancel jobs and wait a few seconds until the queue shows that they end.

    JOB is a job id (112; 112_3 for one task of an array), the name of jobs of mine, or a run directory.
    """
    from slurmgpu.errors import OutcomeUnknown, SlurmGpuError, SlurmRefused
    from slurmgpu.monitoring.cancel import cancel
    from slurmgpu.monitoring.select import current_user, select
    from slurmgpu.monitoring.table import printable
    from slurmgpu.slurm.call import Slurm

    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()
    results = cancel(slurm, select(jobs), user=current_user(), signal=signal)
    problems: dict[str, list[str]] = {"failed": [], "unknown": []}
    for result in results:
        kind = {"missing": "failed", "refused": "failed", "unknown": "unknown"}.get(result.outcome)
        if kind is None:
            click.echo(printable(result.message))
        else:
            problems[kind].append(printable(result.message))
    error: type[SlurmGpuError] = SlurmRefused if problems["failed"] else OutcomeUnknown
    messages = problems["failed"] + problems["unknown"]
    if messages:
        raise error("\n".join(messages), hint="See which jobs there are with: slurmgpu status")
