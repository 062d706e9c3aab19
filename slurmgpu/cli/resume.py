"""``slurmgpu resume``: submit a run's job again, in the same run directory, so that it goes on."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.completing import runs
from slurmgpu.cli.job_options import JobCommand, change_options
from slurmgpu.cli.shared_answers import own_slurm
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
    from slurmgpu.slurm import Slurm

    slurm = own_slurm(ctx)
    record = _resume(slurm, run, given, hold)
    click.echo(record.to_json() if as_json else f"{record.job_id}\n", nl=False)
    if wait or follow:
        ctx.exit(wait_for_job(record, follow, ctx.obj if isinstance(ctx.obj, Slurm) else None))


def _resume(slurm: Slurm, word: str, given: dict[str, Any], hold: bool) -> Run:
    from slurmgpu.jobs.runs import check_at_rest
    from slurmgpu.jobs.select import settle
    from slurmgpu.runs.directory import read_plan
    from slurmgpu.runs.resume import claimed, resubmit

    run_dir, task = _find(slurm, word)
    with claimed(run_dir):
        now = datetime.now(timezone.utc)
        settled = settle(slurm, run_dir, now)
        run = settled.run
        check_at_rest(slurm, run, now)
        if settled.outcome == "unknown" and settled.silent:
            raise OutcomeUnknown(
                f"cannot tell whether the last submission of {run_dir} became a job: {settled.why}",
                hint="nothing was submitted; try again when Slurm answers",
            )
        before = read_plan(run_dir)
        named = given.pop("job__array", None) or task
        submission, job = _submission(run_dir, before, given, hold)
        tasks = _unfinished(slurm, run_dir, run, before, submission.plan, named)
        with as_interrupts():
            made, said = resubmit(
                run_dir, run, submission, slurm, os.environ, anew=(before, job) if job else None, tasks=tasks
            )
    if said:
        note(said)
    note(_where_it_goes_on(run_dir, submission.plan, tasks))
    note(f"job {made.job_id} on cluster {made.cluster or 'unknown'}")
    if hold:
        note(f"it is held; `scontrol release {made.job_id}` lets it start")
    return made


def _find(slurm: Slurm, word: str) -> tuple[Path, str | None]:
    """Return the run directory that is meant, and the task of an array if one is."""
    from slurmgpu.cli.preparing import check_whose
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import find_run
    from slurmgpu.jobs.select import current_user
    from slurmgpu.models.run import RUN_FILE

    runs_of = runs_by_settings(Path.cwd(), os.environ)
    found = find_run(slurm, word, runs_of, current_user()).absolute()
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
    from slurmgpu.cli.preparing import prepare
    from slurmgpu.files.jobs import folder_here
    from slurmgpu.models.run import SUBMITIT_FOLDER
    from slurmgpu.runs.command_checks.judge import each_slip
    from slurmgpu.runs.directory import SCRIPT
    from slurmgpu.runs.preflight import command_of, doubts
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
        made = Submission(plan=before, script=script, folder=folder, cwd=cwd, hold=hold, told=note)
        return made, None
    prepared = prepare({**given, "job__file": str(run_dir / "job.yaml")})
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
    making = prepared.image_to_make(note)
    if making is not None:
        with as_interrupts():
            prepared = prepared.with_image(making, note)
    with as_interrupts():
        prepared.pack(note)
    folder = folder_here(prepared.loaded.work_dir, cwd)
    made = Submission(
        plan=prepared.plan, script=prepared.render(), folder=folder, cwd=cwd, hold=hold, told=note
    )
    return made, prepared.loaded.job


def _unfinished(
    slurm: Slurm, run_dir: Path, run: Run, before: Plan, plan: Plan, named: str | None
) -> Array | None:
    """Return the tasks of an array that are to start; None for a job that is not an array, or when all are.

    SlurmGpuError when nothing is left to do.
    """
    from pydantic import ValidationError

    from slurmgpu.models.job import Array

    text = plan.option("array")
    if text is None:
        if named is not None:
            raise InvalidInput(
                f"--array {named}: {run_dir} is the run of one job, which has no tasks", hint="leave it out"
            )
        if _done(slurm, run_dir, run, before, plan, [""]):
            raise _nothing_left(run_dir, plan)
        return None
    array = Array.model_validate(text)
    if named is not None:
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
    done = _done(slurm, run_dir, run, before, plan, [str(number) for number in array.numbers])
    left = [number for number in array.numbers if str(number) not in done]
    if not left:
        raise _nothing_left(run_dir, plan)
    return None if not done else array.only(left)


def _done(slurm: Slurm, run_dir: Path, run: Run, before: Plan, plan: Plan, tasks: list[str]) -> set[str]:
    """Those of an array's tasks ('' of a job without) that have nothing left to do, as far as is known."""
    from slurmgpu.jobs.runs import completed_tasks
    from slurmgpu.runs.checkpoints import is_done, newest_of_tasks
    from slurmgpu.runs.resume import train_settings

    if plan.train is None:
        return completed_tasks(slurm, run) & set(tasks)
    newest = newest_of_tasks(run_dir)
    return {
        task
        for task in tasks
        if is_done(newest.get(task), train_settings(run_dir, task, before, plan) or plan.train)
    }


def _nothing_left(run_dir: Path, plan: Plan) -> SlurmGpuError:
    whose = "all tasks of " if plan.option("array") is not None else ""
    if plan.train is not None:
        epochs, steps = plan.train["epochs"], plan.train["max_steps"]
        name, was = ("max_steps", steps) if epochs is None and steps is not None else ("epochs", epochs or 1)
        longer, early = f"--set train.{name}=N (it was {was})", plan.train.get("early_stop")
        if early:
            longer += f", or train.early_stop.patience=N (it was {early['patience']}) after an early stop"
        return SlurmGpuError(
            f"nothing is left to do: the training of {whose}{run_dir} is done",
            hint=f"to train on: slurmgpu resume {run_dir} {longer}",
        )
    return SlurmGpuError(
        f"nothing is left to do: {whose}{run_dir} has completed",
        hint=f"to run it once more, in a run of its own: slurmgpu submit {run_dir / 'job.yaml'}",
    )


def _where_it_goes_on(run_dir: Path, plan: Plan, tasks: Array | None) -> str:
    from slurmgpu.runs.checkpoints import newest_of_tasks

    newest = newest_of_tasks(run_dir)
    if tasks is not None:
        which = f"starts {'task' if tasks.tasks == 1 else 'tasks'} {tasks.indices} again"
        return f"{which}, from the newest checkpoint where there is one" if newest else which
    if newest:
        steps = sorted({one.step for one in newest.values()})
        return f"continues from step {' to '.join(map(str, sorted({steps[0], steps[-1]})))}"
    if plan.train is not None:
        return "there is no checkpoint yet: the training starts at its first step"
    return (
        "the command starts again in the same run directory; it continues only if the command itself resumes"
    )
