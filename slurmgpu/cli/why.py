"""`slurmgpu why`: why a job waits, what it does, or why it ended."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from datetime import datetime, timedelta
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import jobs as jobs_by_tab
from slurmgpu.diagnosis.facts import CAUSE_SCHEMA, ORDERLY_STOP
from slurmgpu.errors import InvalidInput, OutcomeUnknown
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.run import JobState
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.jobs.look import StatusReport
    from slurmgpu.jobs.why.answer import Shape, Start, Why
    from slurmgpu.models.run import JobStatus
    from slurmgpu.slurm import Present, Slurm


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
    from slurmgpu.cli.shared_answers import named_or_newest, shared_slurm
    from slurmgpu.files.settings import load_settings
    from slurmgpu.jobs.look import status
    from slurmgpu.jobs.select import current_user, select

    settings = load_settings(Path.cwd(), os.environ).settings
    slurm = shared_slurm(ctx, settings)
    if shapes and not settings.policy.test_only:
        raise InvalidInput(
            "why --shapes: this site does not want `sbatch --test-only` to be asked (policy.test_only)",
            hint="slurmgpu why without --shapes says what holds the job, and slurmgpu cluster gpus what is free",
        )
    selections = select(named_or_newest(slurm, jobs))
    report = status(slurm, user=None if all_users else current_user(), selections=selections)
    present = slurm.present()
    told = [_told(slurm, job, present, report.time, shapes) for job in _chosen(report)]
    if as_json:
        click.echo(json.dumps(_document(report, told, slurm.oldest()), indent=2))
    else:
        _show(report, told, slurm.oldest())
    if report.missing:
        ctx.exit(1)
    if report.unasked:
        ctx.exit(OutcomeUnknown.exit_code)


SCHEMA = "slurmgpu.why/1"

_LEAST_GAP = 5 * 60
_LATER = timedelta(minutes=3)

MOST_JOBS = 10
"""Of more, the first are explained: a name can stand for hundreds."""

_VERDICTS = {
    "waits": "is waiting", "held": "is held", "never": "is waiting, and will never start as it is", "runs": "is running",
    "stopped": "stopped in good order", "unknown": "is unknown",
}  # fmt: skip
_ENDS = {
    JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "ran into its time limit", JobState.OUT_OF_MEMORY: "ran out of memory",
    JobState.NODE_FAIL: "lost a node", JobState.PREEMPTED: "was preempted",
}  # fmt: skip
_COLOURS = {"waits": "yellow", "held": "magenta", "never": "red", "runs": "green", "unknown": "red"}


def _chosen(report: StatusReport) -> list[JobStatus]:
    """The jobs that are explained: those that wait or failed first, since the question is mostly about them."""
    return sorted(report.jobs, key=_turn)[:MOST_JOBS]


def _turn(job: JobStatus) -> int:
    if job.state.is_waiting:
        return 0
    return 3 if job.state is JobState.COMPLETED else 1 if job.state.is_final else 2


def _told(slurm: Slurm, job: JobStatus, present: Present, now: datetime, shapes: bool) -> Why:
    from slurmgpu.jobs.why.explain import explain
    from slurmgpu.jobs.why.sizes import shapes_of

    why = explain(job, present, now, os.environ)
    if why.verdict == "ended":
        _tell_end(why)
    if shapes and why.verdict in ("waits", "never") and job.raw_id is not None:
        why.shapes = shapes_of(slurm, job, present, Path.cwd(), now)
        why.mends = [one for one in why.mends if "--shapes" not in (one.command or "")]
    return why


def _tell_end(why: Why) -> None:
    """What failed first, by what the job's script left, or by its logs; and whether its node did so before."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.cause_files import orderly_stop
    from slurmgpu.jobs.causes import cause_lines, cause_of, earlier_on_node, is_own_doing
    from slurmgpu.jobs.runs import run_of_job
    from slurmgpu.jobs.why.answer import Mend
    from slurmgpu.jobs.words import STOPPED

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


def _document(report: StatusReport, told: list[Why], age: float) -> dict[str, object]:
    from slurmgpu.jobs.why.answer import document

    return {
        "schema": SCHEMA,
        "cluster": report.cluster,
        "time": report.time.isoformat(timespec="seconds"),
        "age_seconds": round(age, 1),
        "jobs": [document(why) for why in told],
        "missing": report.missing,
        "unasked": report.unasked,
        "left_out": len(report.jobs) - len(told),
        "notes": report.notes,
    }


def _show(report: StatusReport, told: list[Why], age: float) -> None:
    from slurmgpu.cli.shared_answers import ago
    from slurmgpu.jobs.why.answer import listed

    for note in report.notes:
        click.echo(f"note: {printable(note)}", err=True)
    shown = [why for why in told if why.job.source != "none"]
    if shown:
        click.echo(
            f"cluster {report.cluster or 'unknown'}, {report.time.astimezone():%Y-%m-%d %H:%M:%S}{ago(age)}"
        )
    well = [why for why in shown if why.job.state is JobState.COMPLETED and why.sentence == "completed"]
    several = len(well) > 1  # tasks of an array: there is nothing to tell of each
    for why in shown:
        if not (several and why in well):
            for line in _lines(why, report.time):
                click.echo(line)
    if several:
        click.echo(f"\ncompleted: {listed([why.job.job_id for why in well], MOST_JOBS)}")
    if len(report.jobs) > len(told):
        click.echo(
            f"note: {len(report.jobs) - len(told)} more jobs are not explained; name one by its id", err=True
        )


def _lines(why: Why, now: datetime) -> list[str]:
    """The answer for people: the sentence, then what it rests on, then what can be done."""
    job = why.job
    name = f" ({printable(job.name)})" if job.name else ""
    verdict = _VERDICTS.get(why.verdict) or _ENDS.get(job.state, "has ended")
    styled = click.style(verdict, fg=_COLOURS.get(why.verdict), bold=True) if sys.stdout.isatty() else verdict
    first = f"job {job.job_id}{name} {verdict}"
    if why.verdict in ("waits", "held", "never") and job.reason:
        first += f"; Slurm's reason: {printable(job.reason)}"
    lines = ["", *_folded(first, "", "    ")]
    # Whole words alone have a colour: a control sequence counts for textwrap as letters.
    lines[1] = lines[1].replace(f" {verdict}", f" {styled}", 1)
    if not _told_already(why, verdict):
        lines += _folded(why.sentence, "  ")
    lines += [
        line for fact in why.facts if fact.text not in why.sentence for line in _folded(fact.text, "  - ")
    ]
    for line in why.end:
        text = line.lstrip()
        lines += _folded(text, " " * (2 + len(line) - len(text)), "  ")
    if why.start is not None:
        lines += _folded(_start(why.start, now), "  - ")
    if why.shapes is not None:
        lines += ["what would start, by Slurm's estimate for a new job (sbatch --test-only; no promise):"]
        lines += [line for text in _shapes(why, now) for line in _folded(text, "  - ")]
    if why.mends:
        lines += ["what to do:"]
        for mend in why.mends:
            lines += _folded(mend.text, "  - ")
            lines += [f"      {printable(mend.command)}"] if mend.command else []
    lines += [
        line
        for what, why_not in why.unknown.items()
        for line in _folded(f"{what}: {printable(why_not)}", "  ? ")
    ]
    return lines


def _told_already(why: Why, verdict: str) -> bool:
    """Whether the first line or the first cause says all that the sentence does."""
    if why.sentence in (verdict, "runs", "completed", "failed"):
        return True
    return bool(why.end) and (why.sentence in why.end[0] or why.sentence.startswith("the command failed"))


def _folded(text: str, mark: str, hang: str = "") -> list[str]:
    width = max(get_terminal_size().columns, 40) if sys.stdout.isatty() else 10_000
    return textwrap.wrap(
        text,
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark) + hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _start(start: Start, now: datetime) -> str:
    from slurmgpu.jobs.why.answer import clock, span

    if start.expected is None:
        text = "Slurm has no estimate of its start yet"
        if start.before is not None and start.looked is not None:
            text += f"; at your last look ({clock(start.looked, now)}) it was {clock(start.before, now)}"
        return text
    wait = (start.expected - now).total_seconds()
    when = f"in {span(wait)}" if wait > 0 else "any moment"
    text = f"Slurm expects it to start at {clock(start.expected, now)}, {when}"
    if start.looked is None:
        return text
    looked = clock(start.looked, now)
    if start.before is None:
        return f"{text}; at your last look ({looked}) there was no estimate"
    moved = (start.expected - start.before).total_seconds()
    if abs(moved) < 60:
        return f"{text}; the same as at your last look ({looked})"
    return f"{text}; {span(moved)} {'later' if moved > 0 else 'earlier'} than at your last look ({looked})"


def _gap(shape: Shape) -> str:
    """That it fits what is free before the jobs ahead are to start: Slurm's estimate does not look for such gaps."""
    from slurmgpu.jobs.why.answer import span

    if shape.free_for is None or shape.free_for < _LEAST_GAP:
        return ""
    if shape.limit is not None and shape.limit <= shape.free_for:
        return "; but it fits what is free now, and holds up no job ahead: Slurm may start it at once"
    return (
        f"; but it fits what is free now, where with at most {span(shape.free_for)} it holds up no job ahead"
    )


def _shapes(why: Why, now: datetime) -> list[str]:
    from slurmgpu.jobs.why.answer import clock

    found = []
    for one in why.shapes or ():
        what = f"with {' '.join(one.options)}" if one.options else "as it is"
        if one.refused is not None:
            found.append(f"{what}: never; Slurm says: {printable(one.refused)}")
        else:
            text = f"{what}: {clock(one.start, now) if one.start else 'unknown'}"
            if one.start and one.start > now + _LATER:
                text += _gap(one)
            found.append(text)
    return found
