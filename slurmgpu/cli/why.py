"""`slurmgpu why`: why a job waits, what it does, or why it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.cli.options import ago, named_or_newest, shared_slurm
from slurmgpu.cli.terminal import Say, echo_error, echo_json
from slurmgpu.diagnosis.facts import CAUSE_SCHEMA, ORDERLY_STOP
from slurmgpu.errors import InvalidInput, OutcomeUnknown
from slurmgpu.interrupts import as_interrupts
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.jobs.look import StatusReport
    from slurmgpu.jobs.select import Selection
    from slurmgpu.jobs.why.answer import Why
    from slurmgpu.models.run import JobStatus
    from slurmgpu.slurm import Slurm

SCHEMA = "slurmgpu.why/1"
MOST_JOBS = 10
"""Of more, the first are explained: a name can stand for hundreds."""
_COLOURS = {"waits": "yellow", "held": "magenta", "never": "red", "runs": "green", "unknown": "red"}


@click.command("why")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, shell_complete=jobs_by_tab)
@click.option(
    "--shapes", is_flag=True, help="Ask Slurm what would start sooner: fewer GPUs, less time, elsewhere."
)
@click.option("--all-users", is_flag=True, help="Everybody's jobs, where JOB is a name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
@as_interrupts()
def command(ctx: click.Context, jobs: tuple[str, ...], shapes: bool, all_users: bool, as_json: bool) -> None:
    """Say why a job waits, or why it failed.

    For a job that waits: what it asks for, what is free and when, who is ahead, which limit holds it, when Slurm expects it
    to start, and what would let it start. For one that failed: which rank failed first, on which node, its own error, and
    the fix. For one that runs: since when, until when, and how far its training is.

    JOB is a job id (112, 112_3), a job name, or a run directory; without one, your newest job. Exit code
    1 when Slurm does not know a job, 3 when the queue could not be asked for it.
    """
    from slurmgpu.files.settings import load_settings
    from slurmgpu.jobs.select import current_user, select

    settings = load_settings(Path.cwd(), os.environ).settings
    slurm = shared_slurm(ctx, settings)
    if shapes and not settings.policy.test_only:
        raise InvalidInput(
            "why --shapes: this site does not want `sbatch --test-only` to be asked (policy.test_only)",
            hint="slurmgpu why without --shapes says what holds the job, and slurmgpu cluster gpus what is free",
        )
    selections = select(named_or_newest(slurm, jobs))
    user = None if all_users else current_user()
    report, answers = explain_jobs(slurm, selections, user=user, shapes=shapes)
    if as_json:
        echo_json(_document(report, answers, slurm.oldest()), ensure_ascii=True)
    else:
        on_terminal = sys.stdout.isatty()
        width = max(get_terminal_size().columns, 40) if on_terminal else 10_000
        lines = answer_lines(
            report, answers, slurm.oldest(), width=width, in_colour=on_terminal, say=echo_error
        )
        for line in lines:
            click.echo(line)
    if report.missing:
        ctx.exit(1)
    if report.unasked:
        ctx.exit(OutcomeUnknown.exit_code)


def explain_jobs(
    slurm: Slurm, selections: list[Selection], *, user: str | None, shapes: bool = False
) -> tuple[StatusReport, list[Why]]:
    """Return what Slurm says of the jobs, and why each of the first waits, or ended; ``shapes`` asks what would start sooner."""
    from slurmgpu.jobs.look import status
    from slurmgpu.jobs.why.explain import explain
    from slurmgpu.jobs.why.room import shapes_of

    def turn(job: JobStatus) -> int:
        """Jobs that wait or failed come first, since the question is mostly about them."""
        if job.state.is_waiting:
            return 0
        return 3 if job.state.value == "COMPLETED" else 1 if job.state.is_final else 2

    report = status(slurm, user=user, selections=selections)
    present = slurm.present()
    answers = []
    for job in sorted(report.jobs, key=turn)[:MOST_JOBS]:
        why = explain(job, present, report.time, os.environ)
        if why.verdict == "ended":
            _add_end(why)
        if shapes and why.verdict in ("waits", "never") and job.raw_id is not None:
            why.shapes = shapes_of(slurm, job, present, Path.cwd(), report.time)
            why.mends = [one for one in why.mends if "--shapes" not in (one.command or "")]
        answers.append(why)
    return report, answers


def _add_end(why: Why) -> None:
    """Add what failed first, by what the job's script left, or by its logs; and whether its node did so before."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.causes import cause_lines, cause_of, earlier_on_node, is_own_doing, orderly_stop
    from slurmgpu.jobs.runs import run_of_job
    from slurmgpu.jobs.view import STOPPED
    from slurmgpu.jobs.why.answer import Mend
    from slurmgpu.models.run import JobState

    runs_of = runs_by_settings(Path.cwd(), os.environ)
    run = run_of_job(why.job, runs_of=runs_of)
    cause = cause_of(why.job, run)
    by_exit_code = why.job.state is JobState.FAILED and why.job.exit_code == STOPPED and cause is None
    if by_exit_code or orderly_stop(why.job, run) is not None:
        why.verdict = "stopped"
    elif cause is not None and cause.kind == ORDERLY_STOP:
        why.verdict, why.sentence, why.mends = "stopped", cause.what, [Mend(cause.fix)]
    elif cause is not None:
        why.cause = {"schema": CAUSE_SCHEMA, **cause._asdict()}
        if not is_own_doing(why.job, cause):
            why.end = cause_lines(cause, earlier_on_node(cause, runs_of(Path.cwd())))


def _document(report: StatusReport, answers: list[Why], age: float) -> dict[str, object]:
    from slurmgpu.jobs.why.answer import document

    return {
        "schema": SCHEMA,
        "cluster": report.cluster,
        "time": report.time.isoformat(timespec="seconds"),
        "age_seconds": round(age, 1),
        "jobs": [document(why) for why in answers],
        "missing": report.missing,
        "unasked": report.unasked,
        "left_out": len(report.jobs) - len(answers),
        "notes": report.notes,
    }


def answer_lines(
    report: StatusReport,
    answers: list[Why],
    age: float,
    *,
    say: Say,
    width: int = 10_000,
    in_colour: bool = False,
) -> Iterator[str]:
    """Yield the answers for people, folded to ``width``; notes on them go to ``say``."""
    from slurmgpu.jobs.why.answer import listed, verdict_of, why_lines
    from slurmgpu.models.run import JobState

    for note in report.notes:
        say(f"note: {printable(note)}")
    shown = [why for why in answers if why.job.source != "none"]
    if shown:
        yield f"cluster {report.cluster or 'unknown'}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}{ago(age)}"
    well = [why for why in shown if why.job.state is JobState.COMPLETED and why.sentence == "completed"]
    several = len(well) > 1  # tasks of an array: there is nothing to tell of each
    for why in shown:
        if several and why in well:
            continue
        lines = why_lines(why, report.time, width)
        if in_colour:
            # Whole words alone have a colour: a control sequence counts for textwrap as letters.
            verdict = verdict_of(why)
            styled = click.style(verdict, fg=_COLOURS.get(why.verdict), bold=True)
            lines[1] = lines[1].replace(f" {verdict}", f" {styled}", 1)
        yield from lines
    if several:
        yield f"\ncompleted: {listed([why.job.job_id for why in well], MOST_JOBS)}"
    if len(report.jobs) > len(answers):
        say(f"note: {len(report.jobs) - len(answers)} more jobs are not explained; name one by its id")
