"""Wait for a job at the terminal: what is said meanwhile, and what Ctrl-C does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone

import click

from slurmgpu.amounts import count
from slurmgpu.cli.options import shared
from slurmgpu.cli.terminal import note, written
from slurmgpu.errors import OutcomeUnknown, SlurmGpuError, SlurmUnreachable
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.cancel import cancel
from slurmgpu.jobs.log_files import Log, logs_of
from slurmgpu.jobs.logs import GrowingLogs
from slurmgpu.jobs.select import Selection, current_user
from slurmgpu.jobs.wait import Ended, exit_code, wait_for
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm


def wait_at_terminal(
    slurm: Slurm,
    selection: Selection,
    name: str,
    logs: Callable[[JobStatus], list[Log]] | None,
    growing: GrowingLogs | None = None,
) -> Ended:
    """Wait for a job, say its states, and print its ``logs`` as they grow; ``growing`` are those shown already."""

    def say(text: str) -> None:
        note(f"job {name}: {text}")

    try:
        with as_interrupts(), written() as write:
            user = current_user()
            return wait_for(slurm, [selection], user=user, say=say, write=write, logs_of=logs, logs=growing)
    except KeyboardInterrupt:
        note(f"job {name} goes on; `slurmgpu cancel {name}` ends it")
        raise


def wait_for_job(run: Run, follow: bool, slurm: Slurm | None = None) -> int:
    """Wait for a run's newest job, with ``follow`` printing its logs; its exit code."""
    logs = (lambda job: logs_of(run, job)) if follow else None
    ended = wait_at_terminal(slurm or _shared_from_now(), _of_run(run), str(run.job_id), logs)
    if not ended.known:
        note(
            f"how job {run.job_id} ended is not known: neither queue nor accounting tells; look into {run.run_dir}"
        )
    elif exit_code(ended) and not follow:
        note(f"`slurmgpu logs {run.job_id}` shows its log")
    return exit_code(ended)


def _shared_from_now() -> Slurm:
    """Return a Slurm whose answers are shared, of those from now on: the job has come this moment."""
    slurm = shared()
    if slurm.shelf is not None:
        slurm.shelf.only_from_now()
    return slurm


def _of_run(run: Run) -> Selection:
    return Selection(text=run.run_dir, run=run)


_TELL_WHY_AFTER = 30.0
"""Seconds in the queue, after which it is said why."""
_REDRAWN_EVERY = 2.0
"""Seconds: what is drawn is read from a shared folder."""


class _TooLong(Exception):
    """It has waited for as long as it may."""


class Wait:
    """The wait for a job's end: why it is not there yet, how long that may last, and Ctrl-C, which cancels it."""

    def __init__(
        self, slurm: Slurm, run: Run, at_most: int | None, progress: Callable[[], str | None] = lambda: None
    ) -> None:
        self._slurm, self._run, self._at_most, self._progress = slurm, run, at_most, progress
        self._shown, self._redrawn = "", 0.0
        self._began = time.monotonic()
        self._newest: JobStatus | None = None
        self._told = False

    def until_its_end(self) -> JobStatus:
        """Return the job as it ended; SlurmGpuError where it did not start in time, OutcomeUnknown where nobody tells."""
        run = self._run
        try:
            with as_interrupts():
                asked = _shared_from_now()
                note("Ctrl-C cancels it")
                job, user = _of_run(run), current_user()
                ended = wait_for(asked, [job], user=user, say=self._say, see=self._see, pause=self._pause)
            self._clear()
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
        """Say a new state; the end is told by the report, which knows what was planned."""
        if self._newest is None or not self._newest.state.is_final:
            self._clear()
            note(f"job {self._run.job_id}: {text}")

    def _draw(self) -> None:
        """Show how far the job is, in a line that changes; nothing where stderr is no terminal."""
        if not sys.stderr.isatty() or time.monotonic() < self._redrawn + _REDRAWN_EVERY:
            return
        self._redrawn = time.monotonic()
        text = self._progress()
        if text is not None and text != self._shown:
            click.echo(f"\r\x1b[K{printable(text)}", nl=False, err=True)
            self._shown = text

    def _clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._shown = ""

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
                self._clear()
                if why:
                    note(f"job {self._run.job_id} waits: {why}")
        self._draw()
        time.sleep(seconds)

    def _why(self) -> str | None:
        """Return why it waits, in a sentence; None if that is not known."""
        from slurmgpu.jobs.why.explain import explain

        job = self._newest
        if job is None:
            return None
        try:
            return explain(job, self._slurm.present(), datetime.now(timezone.utc), os.environ).sentence
        except SlurmGpuError:
            return None

    def _cancel(self) -> None:
        self._clear()
        try:
            for one in cancel(self._slurm, [_of_run(self._run)], user=current_user()):
                note(one.message)
        except SlurmUnreachable as error:
            note(f"job {self._run.job_id} may go on until its time limit: {error.message}")
