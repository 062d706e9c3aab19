"""Runs whose record does not say which job they became: what Slurm says of them is written into the record."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from slurmgpu.errors import InvalidInput
from slurmgpu.files.run_record import read_run, write_run
from slurmgpu.jobs.select import current_user, owner, scripts_of
from slurmgpu.models.run import EXIT_CODE_FILE, RUN_FILE, JobStatus, Run
from slurmgpu.slurm import JobId, Slurm, cluster_name_here

__all__ = ["IN_FLIGHT", "SettledRun", "note_jobs", "settle"]


# A request that got lost on its way may still arrive; after this time it has, or never will.
IN_FLIGHT = timedelta(minutes=10)


@dataclass(frozen=True)
class SettledRun:
    """What is known of a run's job now."""

    run: Run
    outcome: Literal["job", "no job", "unknown"]
    why: str = ""
    """Of what is unknown, the reason; of a job, what could not be written."""
    silent: bool = False
    """Whether Slurm did not answer, and may tell later."""


def note_jobs(jobs: Iterable[JobStatus], env: Mapping[str, str] | None) -> None:
    """Write the ids of jobs that Slurm has just shown into the records of my runs that lack them.

    Whoever asked did so for another reason: what cannot be read or written is left as it is.
    """
    me = current_user()
    for job in jobs:
        looked_at = (job.script, job.submit_line)
        if looked_at == (None, None) or looked_at in _LOOKED_AT or job.user not in (None, me):
            continue  # a watch sees the same jobs again and again, and an array has one script for all its tasks
        _LOOKED_AT.add(looked_at)
        scripts = scripts_of(job)
        job_id = JobId.parse(job.job_id) if scripts else None
        if job_id is not None:
            for script in scripts:
                _note(script, job_id.number, job.cluster or cluster_name_here(env))


_LOOKED_AT: set[tuple[str | None, str | None]] = set()


def _note(script: str, number: int, cluster: str | None) -> None:
    folder = Path(script).parent
    try:
        run = read_run(folder)
    except InvalidInput:
        return
    if run.job_id is None and run.script_path == script and number not in run.job_ids and _is_mine(folder):
        with suppress(OSError):
            write_run(folder, _with_job(run, number, cluster))


def settle(slurm: Slurm, folder: Path, now: datetime) -> SettledRun:
    """Ask queue and accounting which job a run became, and write it down; may be repeated at any time.

    Raises InvalidInput where ``folder`` has no record that can be read.
    """
    run = read_run(folder)
    if run.job_id is not None:
        return SettledRun(run, "job")
    here = cluster_name_here(slurm.env)
    if run.cluster is not None and here is not None and run.cluster != here:
        why = f"it was submitted on cluster {run.cluster}, and this machine asks {here}"
        return SettledRun(run, "unknown", why)
    earlier = set(run.job_ids)
    found = slurm.find_by_script(
        run.script_path, user=owner(run), since=run.submitted_at - timedelta(minutes=2), earlier=earlier
    )
    if found.jobs:
        number, cluster = found.jobs[0]
        return _written(folder, _with_job(run, number, cluster or here), "job")
    left = sorted(_left_behind(folder) - earlier)
    if len(left) == 1:
        return _written(folder, _with_job(run, left[0], run.cluster), "job")
    if not found.certain:
        return SettledRun(run, "unknown", "; ".join(found.notes), found.silent)
    if run.cluster is None:
        return SettledRun(run, "unknown", "its record does not say on which cluster it was submitted")
    if now - run.submitted_at < IN_FLIGHT:
        until = (run.submitted_at + IN_FLIGHT).astimezone()
        return SettledRun(run, "unknown", f"its job may still appear in the queue, until {until:%H:%M}")
    return _written(folder, run.model_copy(update={"state": "not submitted"}), "no job")


def _left_behind(folder: Path) -> set[int]:
    """Return the jobs whose logs or exit codes lie in a run directory; of an array's task its log has the array's id."""
    logs = [re.match(r"(\d{1,18})(?:_\d+)?\.out\Z", path.name, re.ASCII) for path in folder.glob("logs/*")]
    codes = [re.search(r"\.(\d{1,18})\Z", path.name, re.ASCII) for path in folder.glob(f"{EXIT_CODE_FILE}*")]
    return {int(match[1]) for match in (logs if any(logs) else codes) if match}


def _with_job(run: Run, number: int, cluster: str | None) -> Run:
    return run.model_copy(update={"state": "submitted", "job_id": number, "cluster": cluster})


def _written(folder: Path, run: Run, outcome: Literal["job", "no job"]) -> SettledRun:
    try:
        write_run(folder, run)
    except OSError as error:
        return SettledRun(run, outcome, f"its record cannot be written: {error.strerror}")
    return SettledRun(run, outcome)


def _is_mine(folder: Path) -> bool:
    """Return True if this user made the folder and the record in it: nobody else leads this process to a file of ours."""
    try:
        return {one.lstat().st_uid for one in (folder, folder / RUN_FILE)} == {os.getuid()}
    except OSError:
        return False
