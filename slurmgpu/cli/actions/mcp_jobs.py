"""The tools that act: submit within the budget, cancel the user's own jobs."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path

import click

from slurmgpu.cli.actions import mcp_fields
from slurmgpu.cli.actions.mcp_allowed import limit_of, require
from slurmgpu.cli.actions.mcp_reading import Said, heard, job_of
from slurmgpu.cli.preparing import note, prepare
from slurmgpu.errors import InvalidInput, OutcomeUnknown, PlanError, SlurmGpuError, SlurmRefused
from slurmgpu.files.trust import staying_below
from slurmgpu.jobs.cancel import cancel as cancel_jobs
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import current_user, select
from slurmgpu.mcp.budget import Budget, Entry, hours, new_entry
from slurmgpu.models.plan import Plan
from slurmgpu.runs.directory import new_run_directory
from slurmgpu.runs.preflight import check_before_submission, doubts
from slurmgpu.runs.prepare import Prepared
from slurmgpu.runs.submit import Submission, submit_in
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.slurm import JobId, Slurm

__all__ = ["cancel", "check_script", "gpu_seconds", "submit"]

# Options of sbatch that change neither how many GPUs a job gets nor for how long, nor where it is sent.
_HARMLESS = frozenset(
    {
        "begin", "contiguous", "deadline", "exclude", "gpu-freq", "kill-on-invalid-dep", "nice", "prefer", "signal", "switches",
        "tmp", "wckey",
    }
)  # fmt: skip


def submit(asked: mcp_fields.SubmitFields) -> Said:
    """Submit a job once, within the budget."""
    limit = limit_of(require("submit"))
    book = Budget(os.environ)
    what = _hash(asked)
    with heard() as told:
        entry = book.known(asked.once, what)
        if entry is None:
            entry = _submitted(asked, what, book, limit)
        else:
            note(f"it was submitted before, at {entry.time}; nothing was submitted now")
        click.echo(f"job {entry.job_id} ({entry.name}), run directory {entry.run_dir}")
        left = f"{max(limit - book.spent(), 0) // 36 / 100:g}"
        click.echo(f"{hours(entry.seconds)} GPU-hours are reserved for it; {left} of {hours(limit)} are left")
    return told.said()


def _hash(asked: mcp_fields.SubmitFields) -> str:
    """What is asked for and from where, without the name that was made up for it."""
    text = json.dumps([str(Path.cwd()), asked.model_dump(exclude={"once"})], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _submitted(asked: mcp_fields.SubmitFields, what: str, book: Budget, limit: int) -> Entry:
    """Reserve, and submit; the entry of the job."""
    with staying_below(Path.cwd()):
        prepared = prepare(job_of(asked), starts="submit")
        _check_nothing_to_make(prepared)
        seconds, script = gpu_seconds(prepared), prepared.render()
        check_script(prepared.plan, script)
        check_before_submission(prepared.plan, prepared.folder, os.environ)
        doubted = doubts(prepared.plan, prepared.folder)
    directory = new_run_directory(prepared.runs, prepared.plan, prepared.loaded.job, script)
    entry = new_entry(seconds, what, prepared.plan.name, directory.path)
    try:
        other = book.reserve(asked.once, entry, limit)
    except BaseException:
        directory.remove()
        raise
    if other is not None:  # another server was quicker
        directory.remove()
        return other
    path = prepared.loaded.path
    submission = Submission(
        plan=prepared.plan,
        script=script,
        folder=prepared.folder,
        cwd=Path.cwd(),
        job_file=None if path is None else str(path.absolute()),
        told=note,
    )
    try:
        run, said = submit_in(directory, submission, Slurm(), os.environ)
    except OutcomeUnknown:
        book.settle(asked.once, "unknown")
        raise
    except SlurmGpuError:
        # Submission takes the directory away where nothing was sent, or Slurm has refused it: then alone.
        if not directory.path.exists():
            book.settle(asked.once, "refused")
        raise
    try:
        book.settle(asked.once, "submitted", run.job_id)
    except SlurmGpuError as error:  # the job is there; its run directory tells so to the next call
        note(error.message)
    if said:
        note(said)
    for doubt in doubted:
        note(doubt)
    return entry.model_copy(update={"state": "submitted", "job_id": run.job_id})


def _check_nothing_to_make(prepared: Prepared) -> None:
    """PlanError where an image is to be pulled, or an environment packed: that takes long, and fills the user's disk."""
    making, packing = prepared.image_to_make(note), prepared.environment_to_pack()
    told = making.told_before if making is not None else packing.told_before if packing is not None else None
    if told is not None:
        raise PlanError(
            f"submit: {told}; assistants do not do that",
            hint="the user submits it once with slurmgpu submit; what it makes is kept, and serves the next jobs",
        )


def gpu_seconds(prepared: Prepared) -> int:
    """The most GPU-seconds that a job may use: GPUs x time limit x starts; PlanError where that is not known."""
    plan, job = prepared.plan, prepared.loaded.job
    for name in sorted({*job.sbatch, *(name for one in job.components for name in one.sbatch)} - _HARMLESS):
        raise PlanError(
            f"sbatch.{name}: an option with which assistants submit nothing: what the job then gets is not worked out here",
            hint=f"leave it out; these may stand there: {', '.join(sorted(_HARMLESS))}",
        )
    if prepared.unchosen is not None:
        raise PlanError(
            "budget: no cluster profile is chosen, and without one nobody knows whether a job gets whole nodes",
            hint="the user makes one, or chooses one: slurmgpu init, slurmgpu cluster use NAME",
        )
    if not plan.exact and plan.option("time") is None:
        raise PlanError(
            "budget: the job names no time limit, and Slurm's default is not the job's to rely on",
            hint="say time, such as '2:00:00'",
        )
    if plan.gpu_hours is None:
        raise PlanError(
            "budget: how many GPU-hours the job may use is not known: its time has no limit, it gets whole nodes of unknown "
            "size, or is taken as it stands (a batch script, exact: true)",
            hint="say gpus and time in a planned job; the user submits others: slurmgpu submit",
        )
    if not plan.gpu_hours:
        raise PlanError(
            "budget: the job asks for no GPUs, and a budget in GPU-hours cannot hold such jobs",
            hint="say gpus; the user submits jobs without GPUs: slurmgpu submit",
        )
    starts = 1 + (plan.restart_limit or 0)
    if starts > 1:
        note(
            f"it may start {starts} times, and each counts (restart: {{limit: 1}} or restart: {{on: []}} reserves less)"
        )
    return math.ceil(plan.gpu_hours * 3600 - 1e-6) * starts


def check_script(plan: Plan, script: str) -> None:
    """PlanError where the script asks for something else than the plan: a template may add any line."""
    read = parse_batch_script(script)
    planned = (plan.options, *plan.components)
    found = [
        [(one.name, one.value) for one in read.directives if one.component == number]
        for number in range(read.components)
    ]
    if found != [[(one.name, one.value) for one in options] for options in planned]:
        raise PlanError(
            "submit: the script's #SBATCH lines are not those of the plan: a template changes them",
            hint="assistants submit what the plan says; the user submits the job: slurmgpu submit",
        )


def cancel(asked: mcp_fields.CancelFields) -> Said:
    """End jobs of the user's own."""
    require("cancel")
    for word in asked.jobs:
        if JobId.parse(word) is None:
            raise InvalidInput(
                f"jobs: {word!r} is not a job's id", hint="give ids as status shows them: 112, or 112_3"
            )
    me, slurm, selections = current_user(), Slurm(), select(asked.jobs)
    report = status(slurm, user=me, selections=selections)
    if report.no_answer is not None:
        raise report.no_answer
    for job in report.jobs:
        # Who administers Slurm could end anybody's.
        if job.source not in ("none", "run.json") and job.user != me:
            raise PlanError(
                f"cancel: {job.job_id} is not a job of {me}; nothing was cancelled",
                hint="name the user's own jobs only; status lists them",
            )
    with heard() as told:
        results = cancel_jobs(slurm, selections, user=me)
        for result in results:
            click.echo(result.message)
    outcomes = {result.outcome for result in results}
    code = SlurmRefused.exit_code if outcomes & {"missing", "refused"} else 0
    code = code or (OutcomeUnknown.exit_code if "unknown" in outcomes else 0)
    return told.said()._replace(code=code)
