"""What ``slurmgpu probe`` does: a short job, a wait, and a report on what it used."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from slurmgpu.cli.actions.asking import shared
from slurmgpu.cli.actions.submit import show, submit, with_image
from slurmgpu.cli.interrupting import as_interrupts
from slurmgpu.cli.preparing import note, prepare
from slurmgpu.errors import InvalidInput, OutcomeUnknown, SlurmGpuError, SlurmUnreachable
from slurmgpu.files.settings import load_settings
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.monitoring.cancel import cancel
from slurmgpu.monitoring.causes import cause_lines, cause_of
from slurmgpu.monitoring.reporting.gathering import JobReport, folder_of, looked_into, report_on_jobs
from slurmgpu.monitoring.reporting.probed import Probed, ended_well, probed
from slurmgpu.monitoring.reporting.wording import count
from slurmgpu.monitoring.select import Selection, current_user
from slurmgpu.monitoring.waiting import Onlooker, wait_for
from slurmgpu.printable import printable
from slurmgpu.slurm import History, Slurm, Start
from slurmgpu.submission.preparing import Prepared
from slurmgpu.submission.probing import as_probe, goes_on, left_out

if TYPE_CHECKING:
    from slurmgpu.cli.probe import How
    from slurmgpu.diagnosis.facts import Cause

SCHEMA = "slurmgpu.probe/1"
_TELL_WHY_AFTER = 30.0
"""Seconds in the queue, after which it is said why."""
_ACCOUNTING_LATE = 60.0
"""Seconds for which accounting may lag behind the queue."""


class _Asked:
    """The job as its file and the options ask for it; known once it is planned."""

    job: Job

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._policy = load_settings(Path.cwd()).settings.policy.sampling

    def as_probe(self, job: Job, _: Cluster) -> Job:
        self.job = job
        return as_probe(job, self._minutes, self._policy)


class _Found(NamedTuple):
    """What came of a probe."""

    report: JobReport
    well: bool
    """Whether it ended as it was to."""
    cause: Cause | None
    """What failed first, where it did not."""


def act(given: dict[str, object], how: How) -> None:
    _check(how)
    asked = _Asked(how.minutes)
    prepared = prepare(given, starts="submit", change=asked.as_probe)
    file = _file_to_change(prepared) if how.apply else None
    _tell_beforehand(prepared, asked.job, how.minutes)
    prepared, making = with_image(prepared, pull=True, now=not how.dry_run)
    slurm = Slurm()
    if how.dry_run:
        show(prepared, slurm, making, "probe --dry-run")
        return
    with as_interrupts():
        prepared.pack(note)
    run = submit(prepared, slurm, of_its_file=False)
    job = _Wait(slurm, run, how.wait_at_most).until_its_end()
    found = _found(slurm, run, job, prepared, asked.job)
    if how.as_json:
        click.echo(json.dumps(_document(found, run, prepared, asked.job), indent=2))
    else:
        _print(found, prepared)
    if found.well:
        _conclude(found, file, prepared, asked.job, how)
        return
    if file is not None:
        note(f"{file} is not changed: the probe did not end well")
    click.get_current_context().exit(1)


def _check(how: How) -> None:
    for option, is_given in (("--json", how.as_json), ("--apply", how.apply)):
        if how.dry_run and is_given:
            raise InvalidInput(
                f"--dry-run and {option} are both given: nothing is found out by a dry run",
                hint="keep one of the two",
            )


def _file_to_change(prepared: Prepared) -> Path:
    """The job file that is changed afterwards; InvalidInput, before anything runs, where there is none to change."""
    from slurmgpu.cli.actions.report_apply import check_own

    path = prepared.loaded.path
    if path is None:
        raise InvalidInput(
            "--apply: the job is made of options or a batch script, and there is no job file to write into",
            hint="name a job file: slurmgpu probe job.yaml --apply; or leave --apply out, and see what is proposed",
        )
    check_own(path)
    if not os.access(path, os.W_OK):
        raise InvalidInput(
            f"--apply: {path} cannot be written", hint="copy it, and probe the copy; or leave --apply out"
        )
    return path


def _tell_beforehand(prepared: Prepared, asked: Job, minutes: int) -> None:
    """What it costs, and what it does without; before anything is sent."""
    plan = prepared.plan
    gpus = f"{count(plan.gpus, 'GPU')} on " if plan.gpus else ""
    hours = next((one.value for one in plan.reasons if one.what == "GPU-hours"), None)
    cost = f", {hours.removesuffix(' at most')} GPU-hours" if hours else ""
    note(
        f"probe {plan.name}: {gpus}{count(plan.nodes, 'node')} for {count(minutes, 'minute')}{cost}; Slurm may take a minute "
        "more to end it"
    )
    for one in left_out(asked):
        note(f"without the rest of the job: {one}")
    if plan.train is None:
        note("the command runs as it is: what it writes outside its run directory, it writes there now, too")


class _TooLong(Exception):
    """It has waited for as long as it may."""


class _Wait:
    """The wait for a probe's end: why it is not there yet, how long that may last, and Ctrl-C, which cancels it."""

    def __init__(self, slurm: Slurm, run: Run, at_most: int | None) -> None:
        self._slurm, self._run, self._at_most = slurm, run, at_most
        self._began = time.monotonic()
        self._newest: JobStatus | None = None
        self._told = False

    def until_its_end(self) -> JobStatus:
        """The job as it ended; SlurmGpuError where it did not start in time, OutcomeUnknown where nobody tells."""
        run, asked = self._run, shared()
        if asked.shelf is not None:
            asked.shelf.only_from_now()
        note("Ctrl-C cancels it")
        onlooker = Onlooker(current_user(), self._say, see=self._see)
        selection = Selection(text=run.run_dir, run=run)
        try:
            with as_interrupts():
                ended = wait_for(asked, selection, onlooker, pause=self._pause)
        except _TooLong:
            self._cancel()
            raise SlurmGpuError(
                f"job {run.job_id} did not start within {count(self._at_most or 0, 'minute')}, and is cancelled"
                + (f": {why}" if (why := self._why()) else ""),
                hint="ask for less, or elsewhere (slurmgpu plan --when); or wait longer: --wait-at-most MINUTES",
            ) from None
        except KeyboardInterrupt:
            self._cancel()
            raise
        if not ended.known:
            raise OutcomeUnknown(
                f"how job {run.job_id} ended is not known: neither queue nor accounting tells",
                hint=f"look into {run.run_dir}",
            )
        return ended.jobs[0]

    def _say(self, text: str) -> None:
        note(f"job {self._run.job_id}: {text}")

    def _see(self, jobs: list[JobStatus]) -> None:
        self._newest = jobs[0] if jobs else None

    def _pause(self, seconds: float) -> None:
        waited = time.monotonic() - self._began
        if self._newest is not None and self._newest.state.is_waiting:
            if self._at_most is not None and waited > 60 * self._at_most:
                raise _TooLong
            if not self._told and waited > _TELL_WHY_AFTER:
                self._told = True
                why = self._why()
                if why:
                    note(f"job {self._run.job_id} waits: {why}")
        time.sleep(seconds)

    def _why(self) -> str | None:
        """Why it waits, in a sentence; None where that is not known."""
        from slurmgpu.monitoring.why.explain import explain

        job = self._newest
        if job is None:
            return None
        try:
            return explain(job, self._slurm.present(), datetime.now(timezone.utc), os.environ).sentence
        except SlurmGpuError:
            return None

    def _cancel(self) -> None:
        selection = Selection(text=self._run.run_dir, run=self._run)
        try:
            for one in cancel(self._slurm, [selection], user=current_user()):
                note(one.message)
        except SlurmUnreachable as error:
            note(f"job {self._run.job_id} may go on until its time limit: {error.message}")


def _found(slurm: Slurm, run: Run, job: JobStatus, prepared: Prepared, asked: Job) -> _Found:
    well = ended_well(job, folder_of(run, job))
    limit = asked.resources.time
    request = Probed(
        None if limit is None else limit.seconds if limit.seconds is not None else "UNLIMITED", goes_on(asked)
    )
    report = probed(_report(slurm, run, job, prepared.cluster), run, prepared.plan, request, prepared.cluster)
    return _Found(report, well, None if well else cause_of(job, run))


def _report(slurm: Slurm, run: Run, job: JobStatus, cluster: Cluster) -> JobReport:
    """The report on the job, once accounting has its steps; without accounting, by its samples alone."""
    selection = Selection(text=run.run_dir, run=run)
    deadline = time.monotonic() + _ACCOUNTING_LATE
    pause = 1.0
    with as_interrupts():
        while True:
            found = report_on_jobs(
                slurm, [selection], user=current_user(), since=None, run_for=lambda _: run, cluster=cluster
            )
            figures = found.jobs[0].figures if found.jobs else None
            told = figures is not None and figures.job.state.is_final and figures.steps
            if told or not found.available or time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, 10.0)
    if found.jobs and found.jobs[0].figures.job.state.is_final:
        return found.jobs[0]
    return JobReport(looked_into(History((Start(job),)), slurm.sampling(), lambda _: run), cluster, run)


def _print(found: _Found, prepared: Prepared) -> None:
    from slurmgpu.monitoring.reporting.text import job_lines

    carbon = prepared.cluster.carbon
    click.echo("\n".join(job_lines(found.report, carbon, bars=False)))
    for line in cause_lines(found.cause) if found.cause is not None else ():
        click.echo(line)


def _conclude(found: _Found, file: Path | None, prepared: Prepared, asked: Job, how: How) -> None:
    proposals = found.report.advice.proposals
    if file is None:
        path = prepared.loaded.path
        if proposals and path is not None:
            note(f"{path} is as it was; with --apply, probe writes what it proposes into it")
        return
    if not proposals:
        note(f"{file}: nothing is proposed, and nothing is changed")
        return
    from slurmgpu.cli.actions.report_apply import write_request

    write_request(found.report, file, asked, prepared.plan, beside=how.as_json)


def _document(found: _Found, run: Run, prepared: Prepared, asked: Job) -> dict[str, object]:
    from slurmgpu.monitoring.reporting.document import job_document

    part = found.report.part
    return {
        "schema": SCHEMA,
        "cluster": run.cluster,
        "run_dir": run.run_dir,
        "ended_well": found.well,
        "stopped": part is not None,
        "whole_seconds": None if part is None else part.seconds,
        "whole_how": None if part is None else part.how,
        "memory_grows": None if part is None else part.grows,
        "unseen": [] if part is None else list(part.unseen),
        "left_out": [printable(one) for one in left_out(asked)],
        "cause": None if found.cause is None else found.cause._asdict(),
        "job": job_document(found.report, prepared.cluster.carbon),
    }
