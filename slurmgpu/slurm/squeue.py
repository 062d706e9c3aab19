"""The queue by one squeue call, and what running jobs use by sstat, which asks the nodes and is called only on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

from slurmgpu.errors import SlurmRefused
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm.commands import READ_TIMEOUT, Commands, unreachable
from slurmgpu.slurm.text import (
    SEPARATOR,
    JobId,
    each_row,
    expand_pattern,
    gpus_of_job,
    known,
    meaning_of,
    moment,
    often,
    seconds,
    size,
    unread,
    whole,
)

__all__ = [
    "FIELDS", "StepUse", "live_use_command", "parse_live_use", "parse_queue", "queue_command", "read_live_use",
    "read_queue",
]  # fmt: skip


# All of these are in every release from 20.11 on; one unknown name would make squeue refuse the whole call.
# The first two are what a row is recognised by.
FIELDS = (
    "JobArrayID", "JobID", "Cluster", "UserName", "Account", "Partition", "QOS", "State", "Reason",
    "TimeUsed", "TimeLimit", "TimeLeft", "SubmitTime", "StartTime", "EndTime", "NumNodes", "NumCPUs",
    "NodeList", "tres-alloc", "tres-per-job", "tres-per-node", "RestartCnt", "exit_code", "Name",
    "WorkDir", "StdOut", "StdErr", "Command", "Dependency",
)  # fmt: skip


def queue_command(user: str | None) -> list[str]:
    """Return the squeue command for one user's jobs (None: everybody's).

    Finished jobs are asked for, too: the controller remembers them for some minutes (MinJobAge), and what it
    says is never behind, as accounting can be.
    """
    fields = ",".join(f"{name}:{SEPARATOR}" for name in FIELDS)
    whose = [] if user is None else [f"--user={user}"]
    return ["squeue", "--noheader", "--noconvert", "--states=all", *whose, "-O", fields]


def read_queue(
    slurm: Commands, user: str | None, *, timeout: float = READ_TIMEOUT
) -> tuple[list[JobStatus], list[str]]:
    """Ask for the jobs of a user (None: everybody's); returns them with notes on rows that cannot be read.

    Raises SlurmUnreachable when there is no answer that could be read, SlurmRefused when squeue or the controller
    says no.
    """
    answer = slurm.ask(queue_command(user), timeout=timeout)
    meaning = meaning_of(answer)
    if meaning == "refused":
        raise SlurmRefused(f"squeue refused (exit status {answer.rc}): {answer.text}")
    if meaning != "answered":
        raise unreachable(answer)
    return parse_queue(answer.stdout)


def parse_queue(text: str) -> tuple[list[JobStatus], list[str]]:
    """Read what `command` prints; rows that are none become notes."""
    bad: list[str] = []
    odd: list[str] = []
    jobs = list(_jobs(each_row(text, len(FIELDS), bad), odd))
    return jobs, unread("squeue", bad) + odd


def _jobs(good: Iterable[list[str]], notes: list[str]) -> Iterator[JobStatus]:
    for row in good:
        fields = dict(zip(FIELDS, row, strict=True))
        shown = fields["JobArrayID"].strip()
        job_id = JobId.parse(shown)
        if job_id is None:
            notes.append(f"squeue: a row with the id {shown!r} was left out: that is not a job id")
            continue
        yield _job(fields, shown, job_id)


@lru_cache(maxsize=1024)
def _exit(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal, from a wait status (768 is 3:0) or from a pair."""
    code, colon, signal = text.strip().partition(":")
    if colon:
        return whole(code), whole(signal)
    status = whole(code)
    if status is None:
        return None, None
    # A process that a signal ended has no exit code, whatever the upper bits hold.
    signal_number = status & 0x7F
    return (0, signal_number) if signal_number else (status >> 8 & 0xFF, 0)


def _below(work_dir: str | None, path: str | None) -> str | None:
    """Return the whole path of a log; 26.05 gives the default as it is, slurm-%j.out."""
    if not path or path.startswith("/"):
        return path or None
    return f"{work_dir}/{path}" if work_dir else None


def _named(field: str | None, unnamed: str, job_id: JobId) -> str | None:
    """A log's pattern; before 24.11, one that the user did not name has the job's own number, and slurmd names it otherwise."""
    if field != unnamed:
        return field
    return "slurm-%A_%a.out" if job_id.tasks else "slurm-%j.out"


def _job(fields: dict[str, str], shown: str, job_id: JobId) -> JobStatus:
    state_text = intern(fields["State"])
    state = JobState.parse(state_text)
    waits, over = state.is_waiting, state.is_final
    nodes = whole(fields["NumNodes"])
    gpus = gpus_of_job(fields["tres-alloc"], fields["tres-per-job"], fields["tres-per-node"], nodes)
    raw_id, name, user = whole(fields["JobID"]), fields["Name"], often(fields["UserName"])
    node_list = known(fields["NodeList"])
    work_dir = often(fields["WorkDir"])
    start = moment(fields["StartTime"])
    exit_code, signal = _exit(fields["exit_code"]) if over else (None, None)

    def path(pattern: str | None) -> str | None:
        return pattern and _below(work_dir, expand_pattern(pattern, job_id=job_id, raw_id=raw_id, name=name, user=user,
                                                           node_list=node_list))  # fmt: skip

    unnamed = f"{work_dir}/slurm-{raw_id}.out"
    stdout = path(_named(often(fields["StdOut"]), unnamed, job_id))
    own_stderr = _named(often(fields["StdErr"]), unnamed, job_id)
    return JobStatus.told(
        {
            "job_id": shown,
            "raw_id": raw_id,
            "array_job_id": job_id.number if job_id.tasks else None,
            "array_tasks": job_id.tasks,
            "cluster": often(fields["Cluster"]),
            "name": name,
            "user": user,
            "state": state,
            "state_text": state_text,
            "reason": often(fields["Reason"]),
            "partition": often(fields["Partition"]),
            "account": often(fields["Account"]),
            "qos": often(fields["QOS"]),
            "gpus": gpus.count if gpus else None,
            "gpu_types": dict(gpus.types) if gpus else {},
            "nodes": nodes,
            "cpus": whole(fields["NumCPUs"]),
            "node_list": node_list,
            "elapsed": None if waits else seconds(fields["TimeUsed"]),
            "limit": "UNLIMITED"
            if fields["TimeLimit"].strip() == "UNLIMITED"
            else seconds(fields["TimeLimit"]),
            "time_left": None if over else seconds(fields["TimeLeft"]),
            "submit": moment(fields["SubmitTime"]),
            "expected_start": start if waits else None,
            "start": None if waits else start,
            "end": moment(fields["EndTime"]) if over else None,
            "restarts": whole(fields["RestartCnt"]),
            "dependency": known(fields["Dependency"]) if waits else None,
            "exit_code": exit_code,
            "signal": signal,
            "stdout": stdout,
            # From 24.11 on, if not before, it is empty where both streams go to one file.
            "stderr": path(own_stderr) if own_stderr else stdout,
            "work_dir": work_dir,
            "script": known(fields["Command"]),
            "source": "squeue",
        }
    )


LIVE_USE_FIELDS = ("JobID", "NTasks", "AveCPU", "MaxRSS")


@dataclass(frozen=True)
class StepUse:
    """What one running step uses, over its tasks."""

    job_id: int
    step: str
    tasks: int | None
    average_cpu: float | None
    """CPU time of a task, averaged over the tasks, seconds."""
    max_rss: int | None
    """Largest resident set of any task, bytes."""


def live_use_command(ids: Sequence[int]) -> list[str]:
    """Return the sstat command for running jobs, all their steps."""
    # --allsteps, or the batch step is missing; the delimiter cannot be chosen in old releases, and no field
    # asked for here is free text.
    fields = f"--format={','.join(LIVE_USE_FIELDS)}"
    return ["sstat", "--allsteps", "--noheader", "--parsable2", "--noconvert", fields, f"--jobs={_join(ids)}"]


def _join(ids: Sequence[int]) -> str:
    return ",".join(str(i) for i in ids)


def read_live_use(slurm: Commands, ids: Sequence[int]) -> tuple[list[StepUse], list[str]]:
    """Ask for the steps of running jobs (plain ids); returns them with a note when sstat complains.

    One job that ended meanwhile makes sstat fail for itself only: the others' rows count.
    """
    if not ids:
        return [], []
    answer = slurm.ask(live_use_command(ids))
    notes = [] if answer.ok else [f"live use is incomplete: sstat said: {answer.text}"]
    return parse_live_use(answer.stdout), notes


def parse_live_use(text: str) -> list[StepUse]:
    """Read what `command` prints; lines that are not rows are passed over."""
    found = []
    for line in text.split("\n"):
        parts = line.split("|")
        job, _, step = parts[0].partition(".")
        number = whole(job)
        if len(parts) != len(LIVE_USE_FIELDS) or number is None or not step:
            continue
        found.append(StepUse(number, step, whole(parts[1]), seconds(parts[2]), size(parts[3])))
    return found
