"""The source of jobs for ``slurmgpu top`` and ``slurmgpu web``, and how they resume and submit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.options import own_slurm, shared_slurm
from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable
from slurmgpu.files.settings import load_settings, runs_by_settings
from slurmgpu.jobs.live import Source
from slurmgpu.jobs.runs import run_of_job, runs_that_ended
from slurmgpu.jobs.select import current_user, since_moment
from slurmgpu.models.run import JobStatus, Run

if TYPE_CHECKING:
    from slurmgpu.web.generator import Submitted

# `python -m` would import what lies in the folder of the jobs first, and a project may have a file called click.py.
_START = "import sys; sys.path[:] = filter(None, sys.path); from slurmgpu.cli import main; main()"
# A folder of runs is not read more often than so, seconds.
_OLD = 20.0


def live_source(ctx: click.Context, since: str | None, *, all_users: bool = False) -> Source:
    """Return the source of this user's jobs, or of everybody's."""
    runs = KnownRuns()
    return Source(
        looking=shared_slurm(ctx, load_settings(Path.cwd(), os.environ).settings),
        acting=own_slurm(ctx),
        user=current_user(),
        quick_run=runs.quick,
        find_run=runs.find,
        environ=os.environ,
        resume=resume,
        all_users=all_users,
        since=lambda: since_moment(since, datetime.now(timezone.utc)) if since else None,
    )


class KnownRuns:
    """Finds the runs of jobs, each once."""

    def __init__(self) -> None:
        self._runs_of = runs_by_settings(Path.cwd(), os.environ)
        self._known: dict[str, Run | None] = {}
        self._first_asked: dict[str, float] = {}
        self._made = -_OLD
        self._by_trace = runs_that_ended(self._runs_of)

    def quick(self, job: JobStatus) -> Run | None:
        """Return the run of a job whose script has ended, as far as the folders of runs show that now and then."""
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
        """Return the run of a job, among all that are known here."""
        return run_of_job(job, self._runs_of)


def command_of(*words: str) -> list[str]:
    """Return the command line of ``slurmgpu WORDS``, with this Python and its packages."""
    return [sys.executable, "-c", _START, *words]


def resume(word: str) -> tuple[bool, str]:
    """Submit a run again, as ``slurmgpu resume`` does, and return whether that went well, and its words."""
    done = _run_alone(command_of("resume", word))
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return done.returncode == 0, said.replace("slurmgpu: ", "")


def submit(path: Path, cluster: str) -> Submitted:
    """Submit a job file as ``slurmgpu submit`` does."""
    from slurmgpu.web.generator import Submitted  # `top` runs without the extra `web`

    done = _run_alone(
        command_of("submit", str(path), *(["--cluster", cluster] if cluster else [])), cwd=path.parent
    )
    job_id = done.stdout.strip() if done.returncode == 0 else ""
    # An end that no error of slurmgpu's has, a signal's among them, may have come after Slurm took the job.
    sure = done.returncode in {SlurmGpuError.exit_code, InvalidInput.exit_code, SlurmUnreachable.exit_code}
    return Submitted(job_id, done.stderr.strip(), unknown=not job_id and not sure)


def _run_alone(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, for it handles signals and prints."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=cwd,
        start_new_session=True,
    )
