"""``slurmgpu resume``: submit a run's job again, in the same run directory, so that it goes on."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.completing import runs
from slurmgpu.cli.job_options import JobCommand, change_options
from slurmgpu.cli.options import own_slurm
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, OutcomeUnknown, SlurmGpuError
from slurmgpu.files.trust import read_regular
from slurmgpu.interrupts import as_interrupts

if TYPE_CHECKING:
    from slurmgpu.models.job import Array, Job
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.run import Run
    from slurmgpu.runs.submit import Submission
    from slurmgpu.slurm import Slurm


@click.command("resume", cls=JobCommand)
@click.argument("run", metavar="RUN", shell_complete=runs)
@change_options
@click.option("--wait", is_flag=True, help="Wait for the job; end with its exit code.")
@click.option("--follow", is_flag=True, help="Wait, and print the job's logs meanwhile.")
@click.option("-H", "--hold", is_flag=True, help="Submit it held; `scontrol release ID` lets it go.")
@click.option("--json", "as_json", is_flag=True, help="Print the run's record as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    given: dict[str, Any],
    wait: bool,
    follow: bool,
    hold: bool,
    as_json: bool,
) -> None:
    """Submit a run's job again, in the same run directory: a training goes on from its newest checkpoint.

    RUN is a run directory, a job id (112_3 for one task of an array) or a job name, which means its newest run. Without
    options the same script is submitted; with any, the job is planned anew with these on top (-t 4:00:00, --set
    train.epochs=20, or another command after --, as for submit). Of an array the tasks start that are not
    done; --array names others.

    Exit codes: 1 the run's job has not ended, is done, or Slurm refused; 3 nobody can say whether it has ended; 4 Slurm
    does not answer; with --wait or --follow the job's own.
    """
    from slurmgpu.cli.waiting import wait_for_job
    from slurmgpu.jobs.runs import check_at_rest
    from slurmgpu.jobs.select import settle
    from slurmgpu.runs.directory import read_plan
    from slurmgpu.runs.resume import claimed, resubmit, where_it_goes_on
    from slurmgpu.slurm import Slurm

    slurm = own_slurm(ctx)
    run_dir, task = _find(slurm, run)
    with claimed(run_dir):
        now = datetime.now(timezone.utc)
        settled = settle(slurm, run_dir, now)
        check_at_rest(slurm, settled.run, now)
        if settled.outcome == "unknown" and settled.silent:
            raise OutcomeUnknown(
                f"cannot tell whether the last submission of {run_dir} became a job: {settled.why}",
                hint="nothing was submitted; try again when Slurm answers",
            )
        before = read_plan(run_dir)
        named = given.pop("array", None) or task
        submission, job = _submission(run_dir, before, given, hold)
        tasks = _unfinished(slurm, run_dir, settled.run, before, submission.plan, named)
        anew = (before, job) if job else None
        with as_interrupts():
            made, said = resubmit(run_dir, settled.run, submission, slurm, os.environ, anew=anew, tasks=tasks)
    if said:
        note(said)
    note(where_it_goes_on(run_dir, submission.plan, tasks))
    note(f"job {made.job_id} on cluster {made.cluster or 'unknown'}")
    if hold:
        note(f"it is held; `scontrol release {made.job_id}` lets it start")
    click.echo(made.to_json() if as_json else f"{made.job_id}\n", nl=False)
    if wait or follow:
        ctx.exit(wait_for_job(made, follow, ctx.obj if isinstance(ctx.obj, Slurm) else None))


def _find(slurm: Slurm, word: str) -> tuple[Path, str | None]:
    """Return the run directory that is meant, and the task of an array if one is."""
    from slurmgpu.cli.options import check_whose
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import find_run
    from slurmgpu.jobs.select import current_user
    from slurmgpu.models.run import RUN_FILE

    found = find_run(slurm, word, runs_by_settings(Path.cwd(), os.environ), current_user()).absolute()
    if (found / RUN_FILE).is_file():
        check_whose(found, word)
        return found, None
    if found.name.isdecimal() and (found.parent / RUN_FILE).is_file():
        check_whose(found.parent, word)
        return found.parent, found.name
    raise InvalidInput(
        f"{word}: {found} was made by slurmgpu run or train, and no job was submitted from it",
        hint=f"the same command goes on there with --run-dir {found}",
    )


def _submission(
    run_dir: Path, before: Plan, given: dict[str, object], hold: bool
) -> tuple[Submission, Job | None]:
    """Return what to submit: the same script, or with options a newly planned one and its job."""
    from slurmgpu.files.jobs import folder_here
    from slurmgpu.models.run import SUBMITIT_FOLDER
    from slurmgpu.runs.command_checks.judge import each_slip
    from slurmgpu.runs.directory import SCRIPT
    from slurmgpu.runs.preflight import command_of, doubts
    from slurmgpu.runs.prepare import prepare
    from slurmgpu.runs.submit import Submission

    cwd = Path.cwd()
    under_submitit = (run_dir / SUBMITIT_FOLDER).is_dir()
    if under_submitit and before.train is None:
        raise SlurmGpuError(
            f"{run_dir}: its job ran under submitit, which starts a function or command anew",
            hint="submit it again: from Python, or with slurmgpu submit --via submitit",
        )
    if not under_submitit and not any(value not in (None, (), False) for value in given.values()):
        script = read_regular(run_dir / SCRIPT).decode()
        folder = folder_here(before.work_dir, cwd)
        for doubt in doubts(before, folder):
            note(doubt)
        for of, slip in each_slip(command_of(before, before.work_dir, cwd, os.environ, in_file=True)):
            note(f"warning: {of}{slip.message}; {slip.hint}")
        return Submission(plan=before, script=script, folder=folder, cwd=cwd, hold=hold, told=note), None
    prepared = prepare({**given, "file": str(run_dir / "job.yaml")}, note)
    train = prepared.loaded.job.train
    if train is not None and before.train is not None:
        # What nobody says stays as it was: this version of slurmgpu may have other defaults.
        said = {key: value for key, value in train.document().items() if key in train.model_fields_set}
        prepared = prepared._replace(plan=prepared.plan.model_copy(update={"train": before.train | said}))
    if (prepared.plan.option("array") is None) != (before.option("array") is None):
        raise InvalidInput(
            f"{run_dir}: its job is {'no' if before.option('array') is None else 'an'} array, and stays so",
            hint="leave array as it was, or submit a job of its own",
        )
    prepared = prepared.make_files(note)
    return Submission.of(prepared, told=note, hold=hold), prepared.loaded.job


def _unfinished(
    slurm: Slurm, run_dir: Path, run: Run, before: Plan, plan: Plan, named: str | None
) -> Array | None:
    """Return the tasks of an array that are to start; None for a job that is not an array, or when all are.

    SlurmGpuError when nothing is left to do.
    """
    from pydantic import ValidationError

    from slurmgpu.jobs.runs import completed_tasks
    from slurmgpu.models.job import Array
    from slurmgpu.runs.resume import nothing_left, trained_tasks

    text = plan.option("array")
    array = None if text is None else Array.model_validate(text)
    if named is not None:
        if array is None:
            raise InvalidInput(
                f"--array {named}: {run_dir} is the run of one job, which has no tasks", hint="leave it out"
            )
        try:
            wanted = Array.model_validate(named)
        except ValidationError as error:
            raise InvalidInput(f"option --array: {error.errors()[0]['msg']}") from None
        strange = sorted(set(wanted.numbers) - set(array.numbers))
        if strange:
            raise InvalidInput(
                f"--array {named}: {run_dir} has no task {strange[0]}; it has {array.indices}",
                hint="name tasks that it has, or submit an array of its own",
            )
        return wanted
    tasks = [""] if array is None else [str(number) for number in array.numbers]
    trains = plan.train is not None
    done = trained_tasks(run_dir, tasks, before, plan) if trains else completed_tasks(slurm, run)
    left = [task for task in tasks if task not in done]
    if not left:
        raise nothing_left(run_dir, plan)
    return None if array is None or len(left) == len(tasks) else array.only([int(task) for task in left])
