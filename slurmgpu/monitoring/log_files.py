"""Which log files a job has and what is in them: one for both streams, one for each, or some for every task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from slurmgpu.models.run import SUBMITIT_FOLDER, JobStatus, Run
from slurmgpu.monitoring.select import user_number
from slurmgpu.slurm import JobId, expand_pattern

__all__ = ["Log", "Stream", "absence", "end_of", "logs_of", "tasks_of"]

Stream = Literal["stdout", "stderr", "both"]

_NAMES: dict[str, Stream] = {"out": "stdout", "err": "stderr"}


class Log(NamedTuple):
    """One log file of a job; the path is None where it cannot be told."""

    job_id: str
    path: Path | None
    stream: Stream = "both"
    part: str = ""
    """Which part of the job wrote it, where several did: `task 0`, `batch script`."""
    why: str = ""
    """Why there is no path, or why the file may not be there."""

    @property
    def title(self) -> str:
        """The job, the part of it and the stream, for a header."""
        stream = "" if self.stream == "both" else self.stream
        return ", ".join(filter(None, (f"job {self.job_id}", self.part, stream)))

    def shows(self, stream: Stream) -> bool:
        """Whether what was asked for is in it."""
        return "both" in (stream, self.stream) or stream == self.stream


def logs_of(run: Run | None, job: JobStatus) -> list[Log]:
    """Every log of a job: its output, its errors where they go to a file of their own, those of submitit's tasks."""
    why = _why_not_there(job)
    out = _expanded(job.stdout, run.stdout if run else None, job) or _default(job)
    if out is None:
        return [Log(job.job_id, None, why=why or "neither Slurm nor a run directory says where its log is")]
    error = _expanded(job.stderr, run.stderr if run else None, job)
    tasks = [] if run is None or job.raw_id is None else tasks_of(run, job.raw_id, job.job_id)
    tasks += [] if run is None else logs_of_steps(run, out, job.job_id)
    part = "batch script" if tasks else ""
    if error is None or error == out:
        return [Log(job.job_id, out, part=part, why=why), *tasks]
    return [Log(job.job_id, out, "stdout", part, why), Log(job.job_id, error, "stderr", part, why), *tasks]


def _expanded(told: str | None, pattern: str | None, job: JobStatus) -> Path | None:
    """A log's path from what Slurm told, else from the pattern; None while it cannot be known."""
    job_id = JobId.parse(job.job_id)
    if told and "%" not in told:
        return Path(told)
    pattern = pattern or told
    if pattern is None or job_id is None:
        return None
    expanded = expand_pattern(
        pattern, job_id=job_id, raw_id=job.raw_id, name=job.name, user=job.user, node_list=job.node_list
    )
    return None if expanded is None else Path(job.work_dir or ".") / expanded


def _default(job: JobStatus) -> Path | None:
    """The log of a job that named none, if it is there: Slurm forgets a log's path soon after the job's end."""
    job_id = JobId.parse(job.job_id)
    if job.work_dir is None or job_id is None:
        return None
    path = Path(job.work_dir, f"slurm-{job_id.number}{f'_{job_id.tasks}' if job_id.tasks else ''}.out")
    try:
        # Its name can be told beforehand, and the folder may be one that everybody writes into.
        own = path.stat().st_uid == user_number(job.user)
    except OSError:
        return None
    return path if own and path.is_file() else None


def tasks_of(run: Run, number: int, job_id: str) -> list[Log]:
    """The logs that submitit's tasks have begun, in the order of their ranks; none for another job."""
    found = []
    for path in Path(run.run_dir, SUBMITIT_FOLDER).glob(f"{number}_*_log.*"):
        match = re.fullmatch(r"\d+_(\d+)_log\.(out|err)", path.name, re.ASCII)
        if match:
            found.append((int(match[1]), _NAMES[match[2]] == "stderr", path))
    return [
        Log(job_id, path, "stderr" if is_error else "stdout", f"task {rank}")
        for rank, is_error, path in sorted(found)
    ]


def logs_of_steps(run: Run, out: Path, job_id: str) -> list[Log]:
    """The logs of steps that run side by side, once they have begun: they lie beside the job's own."""
    found = [(name, out.with_name(f"{out.stem}-{name}{out.suffix}")) for name in run.steps]
    return [Log(job_id, path, part=f"step {name}") for name, path in found if path.is_file()]


def _why_not_there(job: JobStatus) -> str:
    if job.state.is_waiting:
        why = f" ({job.reason})" if job.reason else ""
        return f"the job has not started yet: it is {job.state.value}{why}"
    if job.state.is_final and job.start is None:
        return f"the job never started: it is {job.state.value}"
    return ""


def end_of(path: Path, lines: int | None) -> tuple[str, int]:
    """The last lines of a file (None: all of it), and its size in bytes; nothing where it is not there yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "", 0
    text = data.decode("utf-8", "replace")
    if lines is not None:
        text = "".join(text.splitlines(keepends=True)[-lines:]) if lines else ""
    return text, len(data)


def absence(log: Log) -> str:
    """Why there is no file at a log's path, as far as this machine can tell."""
    path = log.path
    if path is None or log.why:
        return log.why
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} on this machine; it may be on another one, such as the job's node"
    return "it was removed, is on another machine, or the job ended before it could write it"
