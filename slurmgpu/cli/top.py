"""`slurmgpu top`: jobs, logs and free GPUs on the whole terminal.

What ``slurmgpu top`` does before and after the screen.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.itself import command_of
from slurmgpu.errors import SlurmGpuError

if TYPE_CHECKING:
    from slurmgpu.models.run import JobStatus, Run


@click.command("top")
@click.option("--all-users", is_flag=True, help="Everybody's jobs, as far as the site shows them.")
@click.option("--since", metavar="WHEN", help="Finished jobs since: 30m, 12h, 1d, 2w or a date (default 1d).")
@click.pass_context
def command(ctx: click.Context, all_users: bool, since: str | None) -> None:
    """Watch my jobs on the whole terminal: how far they are, why they wait or failed, their logs, and which GPUs are free.

    Keys show details, follow logs, filter and sort; ? lists them. Capital letters change a job (cancel, hold, release,
    requeue, resume), of your own jobs only, and ask first. Needs the extra `top`.
    """

    from slurmgpu.cli.shared_answers import own_slurm, shared_slurm
    from slurmgpu.files.settings import load_settings
    from slurmgpu.jobs.select import current_user, since_moment

    if since:
        since_moment(since, datetime.now(timezone.utc))  # a mistake is said before the screen is taken
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") in (None, "", "dumb"):
        raise SlurmGpuError(
            "top needs a terminal, and this is none that it can draw on",
            hint="slurmgpu status prints the same once, slurmgpu status --watch again and again",
        )
    if importlib.util.find_spec("textual") is None:
        raise SlurmGpuError(
            "top needs Textual, which is not installed here",
            hint="pip install 'slurmgpu[top]', or use: slurmgpu status --watch",
        )
    from slurmgpu.jobs.live import Source
    from slurmgpu.top.app import Top

    settings = load_settings(Path.cwd(), os.environ).settings
    runs = KnownRuns()
    source = Source(
        looking=shared_slurm(ctx, settings),
        acting=own_slurm(ctx),
        user=current_user(),
        quick_run=runs.quick,
        find_run=runs.find,
        environ=os.environ,
        resume=resume,
        all_users=all_users,
        since=lambda: since_moment(since, datetime.now(timezone.utc)) if since else None,
    )
    # No mouse: the terminal's own selection goes on working.
    Top(source).run(mouse=False)


# A folder of runs is not read more often than so, seconds.
_OLD = 20.0


class KnownRuns:
    """Finds the runs of jobs; of one that was looked for once, what was found then."""

    def __init__(self) -> None:
        from slurmgpu.files.settings import runs_by_settings
        from slurmgpu.jobs.runs import runs_that_ended

        self._runs_of = runs_by_settings(Path.cwd(), os.environ)
        self._known: dict[str, Run | None] = {}
        self._first_asked: dict[str, float] = {}
        self._made = -_OLD
        self._by_trace = runs_that_ended(self._runs_of)

    def quick(self, job: JobStatus) -> Run | None:
        """Among those whose scripts have ended, of which each folder is read once in a while."""

        from slurmgpu.jobs.runs import runs_that_ended

        key = f"{job.cluster} {job.job_id} {job.submit}"
        if key in self._known:
            return self._known[key]
        asked = self._first_asked.setdefault(key, time.monotonic())
        if time.monotonic() - self._made > _OLD:
            self._by_trace, self._made = runs_that_ended(self._runs_of), time.monotonic()
        run = self._by_trace(job)
        # The folder may have been read before the job had ended.
        if run is not None or self._made >= asked:
            self._known[key] = run
        return run

    def find(self, job: JobStatus) -> Run | None:
        """Among all that are known here."""

        from slurmgpu.jobs.runs import run_of_job

        return run_of_job(job, self._runs_of)


def resume(word: str) -> tuple[bool, str]:
    """Submit a run again, as ``slurmgpu resume`` does: a process of its own, for it handles signals and prints."""
    done = subprocess.run(
        command_of("resume", word),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return done.returncode == 0, said.replace("slurmgpu: ", "")
