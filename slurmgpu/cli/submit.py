"""``slurmgpu submit``: submit a job; its id alone on stdout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, PlanError, SlurmUnreachable

if TYPE_CHECKING:
    from slurmgpu.models.job import Dependency
    from slurmgpu.models.run import JobState
    from slurmgpu.slurm import Slurm


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
def command(
    given: dict[str, Any],
    pull: bool,
    dry_run: bool,
    wait: bool,
    follow: bool,
    hold: bool,
    via: str,
    as_json: bool,
) -> None:
    """Submit a job; print its id alone on stdout.

    Everything about the run is kept in its run directory. Exit codes: 1 Slurm refused, 3 nobody knows whether
    Slurm has the job, 4 Slurm does not answer; with --wait or --follow the job's own.
    """
    from slurmgpu.runs.prepare import prepare
    from slurmgpu.runs.submit import submit_prepared
    from slurmgpu.slurm import Slurm

    if as_json and dry_run:
        raise InvalidInput(
            "--json prints the record of a run, and --dry-run makes none",
            hint="leave one out; slurmgpu plan --json prints the plan",
        )
    prepared, slurm = prepare(given, note, starts="submit"), Slurm()
    if not given.get("force"):
        check_dependency(slurm, prepared.loaded.job.dependency)
    if not dry_run:
        prepared = prepared.make_files(note, pull=pull)
    packed = None
    if via == "submitit":
        from slurmgpu.runs.by_submitit import attach, pack_command

        packed = pack_command(prepared.plan)
        prepared = prepared._replace(plan=packed.plan)
    if dry_run:
        from slurmgpu.cli.plan_text import show_submission

        show_submission(prepared, slurm, pull=pull)
        return
    run = submit_prepared(prepared, slurm, note, hold=hold, files=packed.files if packed is not None else {})
    click.echo(run.to_json() if as_json else f"{run.job_id}\n", nl=False)
    if packed is not None:
        attach(packed, run)
    if wait or follow:
        from slurmgpu.cli.waiting import wait_for_job

        click.get_current_context().exit(wait_for_job(run, follow))


def check_dependency(slurm: Slurm, dependency: Dependency | None) -> None:
    """Raise PlanError for a dependency on a job that Slurm does not know, or whose end has decided that this one never starts.

    sbatch takes both, and depending on its release, and on how long ago the job ended, starts this one at once or never
    (seen on 22.05 and 26.05).
    """
    from slurmgpu.jobs.look import status
    from slurmgpu.jobs.select import select
    from slurmgpu.models.run import JobState

    ids = dependency.job_ids if dependency is not None else []
    if not ids:
        return
    try:
        found = status(slurm, user=None, selections=select(ids), detail="sparing")
    except SlurmUnreachable:  # sbatch may answer all the same
        return
    unknown = found.missing
    if unknown:
        raise PlanError(
            f"dependency {dependency}: Slurm knows no job {', '.join(unknown)}",
            hint="slurmgpu status --since 7d lists your jobs; --force submits it all the same",
        )
    ended: dict[str, set[JobState]] = {}
    for job in found.jobs:
        ended.setdefault(re.split(r"[_+]", job.job_id)[0], set()).add(job.state)
    for kind, named in re.findall(r"(afterok|afternotok)((?::[\d_]+)+)", str(dependency)):
        for one in named.strip(":").split(":"):
            states = ended.get(one) or set()
            good = states == {JobState.COMPLETED}
            if states and all(state.is_final for state in states) and good != (kind == "afterok"):
                raise PlanError(
                    f"dependency {kind}:{one}: job {one} has ended ({', '.join(sorted(state.value for state in states))}), so "
                    "this job would never start",
                    hint=f"afterany:{one} starts it whatever became of that job; slurmgpu why {one} says what did",
                )
