"""Why a job failed, and how it really ended: by what its script left in its run directory, else by what its logs tell now."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path

from slurmgpu.diagnosis.facts import BY_SLURM, CAUSE_FILE, ORDERLY_STOP, UNKNOWN, Cause, Facts, code_in_words
from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.select import run_directories, user_number
from slurmgpu.jobs.view import LAUNCH_FAILED, STOPPED, canceller, is_refused, reason
from slurmgpu.models.run import EXIT_CODE_FILE, JobState, JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.slurm import TAKEN_OFF
from slurmgpu.training.formats.run_files import STOP_FILE, read_stop

__all__ = [
    "cause_lines", "cause_of", "earlier_on_node", "in_one_line", "is_own_doing", "orderly_stop", "read_cause", "with_cause",
    "with_whole_exit_code",
]  # fmt: skip

_MOST_BYTES = 1 << 20
_MOST_RUNS, _MOST_FILES, _MOST_LOGS = 200, 400, 2000


# What the script left


def read_cause(run_dir: Path | str, job_id: int | str, owner: int | None = None) -> Cause | None:
    """Return what a job's script wrote into its run directory at its end; None where there is no such file of its owner's.

    ``job_id`` is the plain number; an array's task has a folder of its own. ``owner``: whose file counts (default: this
    user's), since a folder may be one that others write into.
    """
    name = f"{CAUSE_FILE}{job_id}.json"
    paths = [Path(run_dir, name), *islice(Path(run_dir).glob(f"[0-9]*/{name}"), 1)]
    found = (_cause_in(path, os.getuid() if owner is None else owner) for path in paths)
    return next((cause for cause in found if cause is not None), None)


def _cause_in(path: Path, owner: int) -> Cause | None:
    try:
        return Cause.from_json(_read_file_of(owner, path))
    except (OSError, ValueError, RecursionError):
        return None


def _read_file_of(owner: int, path: Path) -> bytes:
    """Return a file's bytes; OSError where it is no plain, small file of this user's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        there = os.fstat(descriptor)
        if there.st_uid != owner or not stat.S_ISREG(there.st_mode) or there.st_size > _MOST_BYTES:
            raise OSError(f"{path} is not a file of user {owner}'s, or is too large")
        return file.read(_MOST_BYTES)


def _written_cause(job: JobStatus, run: Run | None) -> Cause | None:
    """Return what the script of this start wrote down, not that of an earlier one."""
    owner = user_number(job.user)
    if run is None or job.raw_id is None or owner is None:
        return None
    found = read_cause(run.run_dir, job.raw_id, owner)
    return None if found is not None and found.restart < (job.restarts or 0) else found


def orderly_stop(job: JobStatus, run: Run | None) -> str | None:
    """Return how a training of slurmgpu's stopped in good order at the end of this start, and how it continues.

    By state/stop.json, which it leaves once all is saved: torchrun ends with 1 whatever the exit code of its processes.
    """
    owner = user_number(job.user)
    if run is None or job.raw_id is None or owner is None:
        return None
    folder = Path(run.run_dir)
    task = job.job_id.partition("_")[2]
    try:
        stop = read_stop(_read_file_of(owner, (folder / task if task.isdigit() else folder) / STOP_FILE))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    of_this_start = stop.job_id == str(job.raw_id) and stop.restart >= (job.restarts or 0)
    if not of_this_start or not stop.is_orderly:
        return None
    by_time = stop.reason == "time" or job.state is JobState.TIMEOUT
    by = "by its time limit" if by_time else f"by {stop.reason}"
    if job.state is JobState.PREEMPTED:
        by = "for a job that comes first"
    if stop.gained <= 0:
        return f"stopped {by} before it gained a step (it is at step {stop.step}): give it more time"
    return f"stopped {by} at step {stop.step}; slurmgpu resume {job.job_id} continues it"


def with_cause(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> JobStatus:
    """Return a failed job with how it stopped in good order, else with the first cause that its script is certain of."""
    if not job.state.is_final or job.state is JobState.COMPLETED or job.raw_id is None:
        return job
    try:
        run = run_for(job)
    except InvalidInput:  # a record or settings that cannot be read
        return job
    if stop := orderly_stop(job, run):
        return job.model_copy(update={"cause": stop})
    cause = _written_cause(job, run)
    if cause is None or not cause.known or not cause.certain or cause.kind in BY_SLURM:
        return job
    return job.model_copy(update={"cause": in_one_line(cause)})


def with_whole_exit_code(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> JobStatus:
    """Return a failed job with the exit code that it had; the queue's own is never cut.

    The exit code of the job's steps, which sacct shows whole (sacct(1), DerivedExitCode), or the one that the script wrote
    into its run directory, counts where it is the one shown, or that and 128.
    """
    if not job.exit_code_cut or job.exit_code is None:
        return job
    whole = job.exit_code + TAKEN_OFF
    known = whole if job.derived_exit_code == whole else _written_exit_code(job, run_for)
    if known in (job.exit_code, whole):
        return job.model_copy(update={"exit_code": known, "exit_code_cut": False})
    return job


def _written_exit_code(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> int | None:
    try:
        run = run_for(job)
    except InvalidInput:  # a record or settings that cannot be read
        return None
    if run is None:
        return None
    for folder in ("", job.array_tasks or ""):  # a training's array has a folder for each task
        try:
            with open_regular(Path(run.run_dir, folder, f"{EXIT_CODE_FILE}{job.raw_id}")) as file:
                # The run directory may be one that a group writes into.
                if os.fstat(file.fileno()).st_uid == user_number(job.user):
                    return int(file.read(20))
        except (OSError, ValueError):
            continue
    return None


# The first cause


def cause_of(job: JobStatus, run: Run | None) -> Cause | None:
    """Return what failed first in a job that has ended; None where it has not, or where nothing failed.

    The file that its script left is taken where it names a cause of this start; else the job's logs are read, of jobs
    that never heard of slurmgpu, too.
    """
    if not job.state.is_final or job.state is JobState.COMPLETED or is_refused(job):
        return None
    if orderly_stop(job, run) is not None:
        return None
    written = _written_cause(job, run)
    if written is not None and written.known and written.certain:
        by = canceller(job)  # accounting knows, and the script does not
        unnamed = written.kind == "cancelled" and by and " by " not in written.what
        return written._replace(what=f"{written.what} by {by}") if unnamed else written
    found = _by_logs(job, run)
    if found is not None and job.exit_code == STOPPED and found.kind in (UNKNOWN, "exit-code"):
        return None  # a program says so by its exit code, and needs no words
    if found is None or (written is not None and written.known and not found.known):
        return written
    return found


def _by_logs(job: JobStatus, run: Run | None) -> Cause | None:
    from slurmgpu.diagnosis.at_end import processes_of
    from slurmgpu.diagnosis.flight import dumps_in
    from slurmgpu.diagnosis.hiding import secrets_here, without_secrets
    from slurmgpu.diagnosis.judging import diagnose
    from slurmgpu.jobs.log_files import logs_of

    job_id, restarts = str(job.raw_id or job.job_id), job.restarts or 0
    logs = [log.path for log in logs_of(run, job) if log.path is not None][:_MOST_LOGS]
    if job.signal == LAUNCH_FAILED and not job.exit_code and not any(path.exists() for path in logs):
        # slurmstepd could not start it, and left no log to read: most often, a log's folder is not there.
        gone = next((path.parent for path in logs if not path.parent.is_dir()), None)
        what = reason(job) or ""
        fix = "before you submit, make the folders of its log and its work folder, where the nodes see them"
        if gone is not None:
            what = f"Slurm could not open its log: there is no folder {gone}"
            fix = f"make it before you submit: mkdir -p {gone}"
        return Cause("no-launch", what, fix, certain=gone is not None, job_id=job_id, restart=restarts)
    folders = [Path(run.run_dir)] if run is not None and job.raw_id is not None else []
    if folders and "_" in job.job_id:
        # torch's flight recorder may have written into the folder of the array's task.
        folders.append(folders[0] / job.job_id.partition("_")[2])
    facts = Facts(
        state=job.state.value,
        exit_code=job.exit_code,
        signal=job.signal,
        processes=processes_of(Path(run.run_dir)) if run is not None else None,
        cancelled_by=canceller(job),
        restarts=restarts,
        job_id=str(job.raw_id or ""),
        dumps=tuple(path for folder in folders for path in dumps_in(folder, str(job.raw_id), restarts)),
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
    return without_secrets(found._replace(job_id=job_id, restart=restarts), secrets_here(os.environ, ()))


def earlier_on_node(cause: Cause, runs: Path, owner: int | None = None) -> list[Cause]:
    """Return the failures of this user's other runs that began on the same node, where a node may be to blame; newest first.

    Of the newest 200 run directories in a folder.
    """
    from slurmgpu.diagnosis.table import NODE_MATTERS

    if cause.host is None or cause.kind not in NODE_MATTERS:
        return []

    def is_before(one: Cause) -> bool:
        """By their moments, and where these do not tell by the jobs' numbers."""
        if one.time is not None and cause.time is not None and one.time != cause.time:
            return one.time < cause.time
        ids = (one.job_id, cause.job_id)
        return not all(map(str.isdecimal, ids)) or int(ids[0]) < int(ids[1])

    whose = os.getuid() if owner is None else owner
    patterns = (f"{CAUSE_FILE}*.json", f"[0-9]*/{CAUSE_FILE}*.json")
    found = (
        _cause_in(path, whose)
        for folder in islice(run_directories(runs, owner), _MOST_RUNS)
        for path in islice((path for pattern in patterns for path in folder.glob(pattern)), 20)
    )
    causes = [one for one in islice(found, _MOST_FILES) if one is not None]
    there = [one for one in causes if one.host == cause.host and one.kind in NODE_MATTERS]
    return [one for one in there if one.job_id != cause.job_id and is_before(one)]


# In words


def is_own_doing(job: JobStatus, cause: Cause) -> bool:
    """Return True if the user cancelled the job: nobody has to be told how that came about."""
    return cause.kind == "cancelled" and canceller(job) == "you"


def in_one_line(cause: Cause) -> str:
    """Return where it failed first and how, for a cell of a table; nothing of the user's text may steer a terminal."""
    where = f"{cause.where}: " if cause.where else ""
    return printable(f"{where}{cause.what}")


def cause_lines(cause: Cause, earlier: list[Cause] | None = None) -> list[str]:
    """Return the lines of ``slurmgpu why``: what, where and when, the fix, how it ended, and the lines that show it."""
    doubt = "" if cause.certain or not cause.known else " (likely, not certain)"
    lines = [f"{'' if cause.kind == ORDERLY_STOP else 'first cause: '}{in_one_line(cause)}{doubt}"]
    if cause.fix:
        lines.append(f"fix: {printable(cause.fix)}")
    if cause.moment:
        try:
            when = f"{datetime.fromisoformat(cause.moment).astimezone():%Y-%m-%d %H:%M:%S}"
        except ValueError:
            when = printable(cause.moment)
        lines.append(f"when: {when}")
    ended = code_in_words(cause.exit_code, cause.signal)
    if ended and ended not in cause.what:
        lines.append(f"it ended with {ended}" if ended.startswith("exit") else f"it was {ended}")
    if earlier:
        several = "an earlier job" if len(earlier) == 1 else f"{len(earlier)} earlier jobs"
        ids = ", ".join(printable(one.job_id) for one in earlier[:5])
        node = f"the same node, {printable(cause.host or '')}"
        lines.append(f"{node}, was where {several} of yours failed first: {ids}")
    if cause.evidence:
        lines.append("evidence:" if cause.known else "the last lines that matter:")
        lines += [f"  {printable(line)}" for line in cause.evidence]
    return lines
