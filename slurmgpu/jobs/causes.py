"""Why a job failed: the first cause, as its script wrote it down at its end, else as its logs tell it now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

from slurmgpu.diagnosis.at_end import processes_of
from slurmgpu.diagnosis.facts import CAUSE_FILE, ORDERLY_STOP, UNKNOWN, Cause, Facts, code_in_words
from slurmgpu.diagnosis.flight import dumps_in
from slurmgpu.diagnosis.hiding import secrets_here, without_secrets
from slurmgpu.diagnosis.judging import diagnose
from slurmgpu.diagnosis.table import NODE_MATTERS
from slurmgpu.jobs.cause_files import cause_file, in_one_line, orderly_stop, read_cause, written_cause
from slurmgpu.jobs.log_files import logs_of
from slurmgpu.jobs.runs import run_directories
from slurmgpu.jobs.select import user_number
from slurmgpu.jobs.view import LAUNCH_FAILED, STOPPED, canceller, is_refused, reason
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.printable import printable

__all__ = ["cause_lines", "cause_of", "earlier_on_node", "in_one_line", "is_own_doing", "read_cause"]


_MOST_RUNS = 200
_MOST_FILES = 400
_MOST_LOGS = 2000


def cause_of(job: JobStatus, run: Run | None) -> Cause | None:
    """Return what failed first in a job that has ended; None where it has not, or where nothing failed.

    The file that its script left is taken where it names a cause of this start; else the job's logs are read, of jobs
    that never heard of slurmgpu, too.
    """
    if not job.state.is_final or job.state is JobState.COMPLETED or is_refused(job):
        return None
    if orderly_stop(job, run) is not None:
        return None
    written = written_cause(job, run)
    if written is not None and written.known and written.certain:
        return _with_canceller(written, job)
    read = _by_logs(job, run)
    if read is not None and job.exit_code == STOPPED and read.kind in (UNKNOWN, "exit-code"):
        return None  # a program says so by its exit code, and needs no words
    if read is None or (written is not None and written.known and not read.known):
        return written
    return read


def _with_canceller(cause: Cause, job: JobStatus) -> Cause:
    """Who cancelled it: accounting knows, and the script does not."""
    by = canceller(job)
    if cause.kind != "cancelled" or not by or " by " in cause.what:
        return cause
    return cause._replace(what=f"{cause.what} by {by}")


def _by_logs(job: JobStatus, run: Run | None) -> Cause | None:
    logs = [log.path for log in logs_of(run, job) if log.path is not None][:_MOST_LOGS]
    if job.signal == LAUNCH_FAILED and not job.exit_code and not any(path.exists() for path in logs):
        return _never_began(job, logs)
    facts = Facts(
        state=job.state.value,
        exit_code=job.exit_code,
        signal=job.signal,
        processes=processes_of(Path(run.run_dir)) if run is not None else None,
        cancelled_by=canceller(job),
        restarts=job.restarts or 0,
        job_id=str(job.raw_id or ""),
        dumps=_dumps(job, run),
        owner=user_number(job.user),
        host=(job.node_list or "") if job.nodes == 1 else "",
    )
    found = diagnose(map(str, logs), facts)
    if found is None:
        return None
    if not found.known and not any(os.access(path, os.R_OK) for path in logs):
        words = code_in_words(job.exit_code, job.signal)
        found = found._replace(
            what=f"not known{f' ({words})' if words else ''}: there is no log of it that can be read here",
            fix=f"slurmgpu logs {job.job_id} says where its logs should be",
        )
    found = found._replace(job_id=str(job.raw_id or job.job_id), restart=job.restarts or 0)
    return without_secrets(found, secrets_here(os.environ, ()))


def _never_began(job: JobStatus, logs: list[Path]) -> Cause:
    """Of a job that slurmstepd could not start, which leaves no log to read: most often, a log's folder is not there."""
    gone = next((path.parent for path in logs if not path.parent.is_dir()), None)
    what, fix = (
        reason(job) or "",
        "before you submit, make the folders of its log and its work folder, where the nodes see them",
    )
    if gone is not None:
        what, fix = (
            f"Slurm could not open its log: there is no folder {gone}",
            f"make it before you submit: mkdir -p {gone}",
        )
    return Cause(
        "no-launch",
        what,
        fix,
        certain=gone is not None,
        job_id=str(job.raw_id or job.job_id),
        restart=job.restarts or 0,
    )


def earlier_on_node(cause: Cause, runs: Path, owner: int | None = None) -> list[Cause]:
    """Return the failures of this user's other runs that began on the same node, where a node may be to blame; newest first.

    Of the newest 200 run directories in a folder.
    """
    if cause.host is None or cause.kind not in NODE_MATTERS:
        return []
    folders = islice(run_directories(runs, owner), _MOST_RUNS)
    whose = os.getuid() if owner is None else owner
    found = (cause_file(path, whose) for folder in folders for path in islice(_files(folder), 20))
    read = [one for one in islice(found, _MOST_FILES) if one is not None]
    return [
        one
        for one in read
        if one.host == cause.host
        and one.kind in NODE_MATTERS
        and one.job_id != cause.job_id
        and _is_before(one, cause)
    ]


def _dumps(job: JobStatus, run: Run | None) -> tuple[str, ...]:
    """Return what torch's flight recorder left in the run, or in the folder of the array's task."""
    if run is None or job.raw_id is None:
        return ()
    folders = [
        Path(run.run_dir),
        *([Path(run.run_dir, job.job_id.partition("_")[2])] if "_" in job.job_id else []),
    ]
    return tuple(path for folder in folders for path in dumps_in(folder, str(job.raw_id), job.restarts or 0))


def _is_before(one: Cause, other: Cause) -> bool:
    """Return True if a failure came before another: by their moments, and where these do not tell by the jobs' numbers."""
    if one.time is not None and other.time is not None and one.time != other.time:
        return one.time < other.time
    return not one.job_id.isdecimal() or not other.job_id.isdecimal() or int(one.job_id) < int(other.job_id)


def _files(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f"{CAUSE_FILE}*.json")
    yield from folder.glob(f"[0-9]*/{CAUSE_FILE}*.json")


def is_own_doing(job: JobStatus, cause: Cause) -> bool:
    """Return True if the user cancelled the job: nobody has to be told how that came about."""
    return cause.kind == "cancelled" and canceller(job) == "you"


def cause_lines(cause: Cause, earlier: list[Cause] | None = None) -> list[str]:
    """Return the lines of ``slurmgpu why``: what, where and when, the fix, how it ended, and the lines that show it."""
    doubt = "" if cause.certain or not cause.known else " (likely, not certain)"
    lines = [f"{'' if cause.kind == ORDERLY_STOP else 'first cause: '}{in_one_line(cause)}{doubt}"]
    if cause.fix:
        lines.append(f"fix: {printable(cause.fix)}")
    if cause.moment:
        lines.append(f"when: {_local(cause.moment)}")
    ended = code_in_words(cause.exit_code, cause.signal)
    if ended and ended not in cause.what:
        lines.append(f"it ended with {ended}" if ended.startswith("exit") else f"it was {ended}")
    if earlier:
        several = "an earlier job" if len(earlier) == 1 else f"{len(earlier)} earlier jobs"
        ids = ", ".join(printable(one.job_id) for one in earlier[:5])
        lines.append(
            f"the same node, {printable(cause.host or '')}, was where {several} of yours failed first: {ids}"
        )
    if cause.evidence:
        lines.append("evidence:" if cause.known else "the last lines that matter:")
        lines += [f"  {printable(line)}" for line in cause.evidence]
    return lines


def _local(moment: str) -> str:
    """Return a moment as everything else shows it: in this machine's zone."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return printable(moment)
