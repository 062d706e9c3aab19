"""Accounting: one sacct call, read as separated text. It may lag, be empty, or not exist at a site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from sys import intern
from typing import Literal, NamedTuple, TypeVar

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm.commands import Answer, Commands
from slurmgpu.slurm.text import (
    SEPARATOR,
    JobId,
    each_row,
    known,
    meaning_of,
    moment,
    often,
    read_gpus,
    seconds,
    size,
    unread,
    whole,
)

__all__ = [
    "FIELDS",
    "SUBMIT_LINE",
    "TAKEN_OFF",
    "USE",
    "Accounting",
    "AccountingAnswer",
    "Step",
    "absence",
    "accounting_command",
    "asking",
    "even",
    "highest_exit_code",
    "in_tres",
    "parse_accounting",
    "read_accounting",
    "read_job",
    "read_step",
    "whose",
]  # fmt: skip

T = TypeVar("T", bound="AccountingAnswer")

# In every release from 20.11 to 26.05; free text last, the two that mark a row first.
FIELDS = (
    "JobID", "JobIDRaw", "Cluster", "User", "Account", "Partition", "QOS", "State", "ExitCode",
    "Submit", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS", "NTasks", "MaxRSS",
    "TotalCPU", "AllocTRES", "ReqTRES", "NodeList", "Reason", "JobName", "WorkDir",
)  # fmt: skip
SUBMIT_LINE = "SubmitLine"
"""Only from 21.08 on, so it is asked for only where an answer depends on it."""

TAKEN_OFF = 128
"""Up to 25.05 sacct shows an exit code of 128 and more without these 128: a 9 may be the 137 of a command that SIGKILL
ended. (DerivedExitCode it shows whole.)"""
USE = ("DerivedExitCode", "TRESUsageInMax")
"""What a job used and how its steps ended, asked for with the steps."""


class Step(NamedTuple):
    """A step of a job (`112.0`, `112.batch`), as accounting keeps it."""

    job_id: str
    step: str
    name: str
    state: JobState
    exit_code: int | None
    signal: int | None
    elapsed: int | None
    tasks: int | None
    max_rss: int | None
    """Largest resident set of any task, bytes."""
    cpu_seconds: float | None
    """CPU time of all tasks; None where Slurm did not measure."""
    gpu_memory: int | None = None
    """Largest GPU memory of any task, bytes; None where Slurm did not measure."""
    start: datetime | None = None
    end: datetime | None = None
    nodes: int | None = None
    max_rss_node: str | None = None
    """The node of the task with the largest resident set, where it was asked for."""
    average_rss: int | None = None
    """Resident set of a task, averaged over the tasks, bytes."""
    gpu_busiest: float | None = None
    """Highest utilisation of the GPUs of any task in any sample, 0 to 1 a GPU; Slurm keeps no mean of it."""
    sampled_cpu_seconds: float | None = None
    """CPU time of all tasks by Slurm's samples: all there is of a step that was killed."""


@dataclass(frozen=True, kw_only=True)
class AccountingAnswer:
    """How far accounting has answered; `available` is False where there is none or it does not answer."""

    notes: list[str] = field(default_factory=list)
    available: bool = True
    silent: bool = False
    """Whether there is one, and it did not answer: what it does not say may still be so."""


@dataclass(frozen=True)
class Accounting(AccountingAnswer):
    """What accounting knows of jobs and their steps."""

    jobs: list[JobStatus] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def accounting_command(
    *,
    user: str | None = None,
    ids: Sequence[int] = (),
    since: datetime | None = None,
    steps: bool = False,
    submit_line: bool = False,
    use: bool = False,
) -> list[str]:
    """Return the sacct command for jobs by id (whatever their age), or for those of a user since a moment.

    `user` None means everybody, as far as the site lets one see them; `use` asks for the steps and what they used.
    """
    argv = asking(_fields(submit_line, use))
    if not steps and not use:
        argv.append("--allocations")
    return [*argv, *whose(user, ids, since)]


def asking(fields: Iterable[str]) -> list[str]:
    """Return the beginning of every sacct command: rows of these fields that can be told apart whatever is in them."""
    argv = ["sacct", "--noheader", "--parsable", f"--delimiter={SEPARATOR}", "--noconvert"]
    return [*argv, f"--format={','.join(fields)}"]


def whose(user: str | None, ids: Sequence[int], since: datetime | None) -> list[str]:
    """Return the options that say which jobs: by id, or those of a user (None: everybody) since a moment."""
    if ids:
        return [f"--jobs={','.join(str(i) for i in ids)}"]
    argv = ["--allusers" if user is None else f"--user={user}"]
    return argv if since is None else [*argv, f"--starttime={since.astimezone():%Y-%m-%dT%H:%M:%S}"]


_EVEN = 600


def even(since: datetime) -> datetime:
    """Return the last full ten minutes before a moment: processes that ask from there on, one after the other, ask the same."""
    return since - timedelta(seconds=since.timestamp() % _EVEN)


def read_accounting(
    slurm: Commands,
    *,
    user: str | None = None,
    ids: Sequence[int] = (),
    since: datetime | None = None,
    submit_line: bool = False,
    use: bool = False,
) -> Accounting:
    """Ask accounting; a site without it, or one that does not answer, gives a note and no error."""
    argv = accounting_command(user=user, ids=ids, since=since, submit_line=submit_line, use=use)
    answer = slurm.ask(argv)
    return absence(answer, Accounting) or parse_accounting(answer.stdout, submit_line=submit_line, use=use)


def absence(answer: Answer, kind: type[T]) -> T | None:
    """Return what is known where accounting gave no answer; None where it did."""
    if meaning_of(answer) == "answered":
        return None  # without its database it may end with 0, and no row
    silent = meaning_of(answer) != "refused" and _DISABLED not in answer.text
    return kind(notes=[_absence(answer)], available=False, silent=silent)


def _fields(submit_line: bool, use: bool) -> list[str]:
    return [*FIELDS, *([SUBMIT_LINE] if submit_line else []), *(USE if use else [])]


_DISABLED = "accounting storage is disabled"


def _absence(answer: Answer) -> str:
    if _DISABLED in answer.text:
        return (
            "accounting is not available on this cluster (no slurmdbd): "
            "finished jobs are known only for some minutes"
        )
    if answer.rc is None:
        return f"accounting did not answer, so jobs that have ended may be missing: {answer.text}"
    last = answer.text.split("\n")[-1].removeprefix("sacct: error: ")
    return f"accounting does not answer, so jobs that have ended may be missing. sacct said: {last}"


def parse_accounting(text: str, *, submit_line: bool = False, use: bool = False) -> Accounting:
    """Read what `command` prints; rows that are none become notes."""
    fields = _fields(submit_line, use)
    bad: list[str] = []
    notes: list[str] = []
    steps: list[Step] = []
    records = (dict(zip(fields, row, strict=True)) for row in each_row(text, len(fields), bad))
    jobs = list(_jobs(records, steps, notes))
    return Accounting(jobs, steps, notes=unread("sacct", bad) + notes)


def _jobs(records: Iterable[dict[str, str]], steps: list[Step], notes: list[str]) -> Iterator[JobStatus]:
    for record in records:
        if "." in record["JobID"]:
            steps.append(read_step(record))
            continue
        job_id = JobId.parse(record["JobID"])
        if job_id is None:
            notes.append(f"sacct: a row with the id {record['JobID']!r} was left out: that is not a job id")
            continue
        yield read_job(record, job_id)


_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
_FRACTION = re.compile(r"\.\d+\Z", re.ASCII)


# Of a hundred thousand rows, most say the same in these fields, and the steps of a job in their times.
_epoch = lru_cache(maxsize=4096)(moment)
_bytes = lru_cache(maxsize=4096)(size)


def _moment(text: str) -> datetime | None:
    """As `moment`; a time without a zone may mean another moment later in this process."""
    return _epoch(text) if text.isdigit() else moment(text)


@lru_cache(maxsize=4096)
def _exit(text: str) -> tuple[int | None, int | None]:
    match = _EXIT.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def _limit(text: str) -> int | Literal["UNLIMITED"] | None:
    minutes = whole(text)
    if minutes is not None:
        return minutes * 60
    return "UNLIMITED" if text.strip() == "UNLIMITED" else None


def read_job(record: dict[str, str], job_id: JobId) -> JobStatus:
    """One row of an allocation."""
    state_text = intern(record["State"])
    state = JobState.parse(state_text)
    gpus = read_gpus(record["AllocTRES"]) or read_gpus(record["ReqTRES"])
    counted = "cpu=" in record["AllocTRES"] or "cpu=" in record["ReqTRES"]
    exit_code, signal = _exit(record["ExitCode"])
    start = moment(record["Start"])
    return JobStatus.told(
        {
            "job_id": record["JobID"],
            "raw_id": whole(record["JobIDRaw"]),
            "array_job_id": job_id.number if job_id.tasks else None,
            "array_tasks": job_id.tasks,
            "cluster": often(record["Cluster"]),
            "name": record["JobName"],
            "user": often(record["User"]),
            "state": state,
            "state_text": state_text,
            "reason": often(record["Reason"]),
            "partition": often(record["Partition"]),
            "account": often(record["Account"]),
            "qos": often(record["QOS"]),
            "gpus": gpus.count if gpus else 0 if counted else None,
            "gpu_types": dict(gpus.types) if gpus else {},
            "nodes": whole(record["NNodes"]),
            "cpus": whole(record["NCPUS"]),
            "node_list": None if record["NodeList"] == "None assigned" else known(record["NodeList"]),
            "elapsed": None if state.is_waiting else whole(record["ElapsedRaw"]),
            "limit": _limit(record["TimelimitRaw"]),
            "submit": moment(record["Submit"]),
            "start": None if state.is_waiting else start,
            "end": moment(record["End"]),
            # A job that still runs has the exit code 0:0 here, which says nothing.
            "exit_code": exit_code if state.is_final else None,
            "exit_code_cut": state is JobState.FAILED
            and exit_code is not None
            and exit_code + TAKEN_OFF < 256
            and not signal,
            "signal": signal if state.is_final else None,
            "derived_exit_code": _derived(record) if state.is_final else None,
            "work_dir": often(record["WorkDir"]),
            "submit_line": known(record.get(SUBMIT_LINE, "")),
            "source": "sacct",
        }
    )


def _derived(record: dict[str, str]) -> int | None:
    code, signal = _exit(record.get("DerivedExitCode", ""))
    return code or (128 + signal if signal else code)


_SAMPLER = "slurmgpu-sampler"
"""The step of sampling/start.sh: what becomes of it says nothing of the job."""


def highest_exit_code(told: int | None, steps: Iterable[Step]) -> int | None:
    """Return the highest exit code of a job's own steps; ``told``: the DerivedExitCode of its row, where there is one.

    Of a step that ends after its batch script, the row may say 0.
    """
    codes: dict[bool, int] = {}
    for step in steps:
        if step.step.isdecimal():
            code = TAKEN_OFF + step.signal if step.signal else step.exit_code or 0
            is_own = step.name != _SAMPLER
            codes[is_own] = max(codes.get(is_own, 0), code)
    return codes.get(True) if codes.get(False) else told or codes.get(True)


def _cpu_time(text: str) -> float | None:
    """CPU time with its fraction; no process ends without any, so nothing at all was not measured."""
    whole_seconds = seconds(text) if text else None
    if whole_seconds is None:
        return None
    fraction = _FRACTION.search(text.strip()) if "." in text else None
    return whole_seconds + float(fraction[0] if fraction else 0) or None


@lru_cache(maxsize=4096)
def in_tres(text: str, name: str) -> str:
    """One entry's value in a list of TRES, such as `gres/gpumem=20G`; empty where it is not in it."""
    for entry in text.split(","):
        key, _, value = entry.partition("=")
        if key == name:
            return value
    return ""


def _gpu_memory(text: str) -> int | None:
    """gres/gpumem in a list of TRES; 0 is what Slurm writes where it could not measure, as on a part of a GPU."""
    return size(in_tres(text, "gres/gpumem")) or None if "gres/gpumem" in text else None


def _gpu_busiest(text: str) -> float | None:
    """gres/gpuutil in percent; 0 is what Slurm writes where it could not measure, too."""
    percent = whole(in_tres(text, "gres/gpuutil")) if "gres/gpuutil" in text else None
    return percent / 100 if percent else None


def read_step(record: dict[str, str]) -> Step:
    """One row of a step."""
    job_id, _, step = record["JobID"].partition(".")
    exit_code, signal = _exit(record["ExitCode"])
    return Step(
        job_id=job_id,
        step=step,
        name=record["JobName"],
        state=JobState.parse(record["State"]),
        exit_code=exit_code,
        signal=signal,
        elapsed=whole(record["ElapsedRaw"]),
        tasks=whole(record["NTasks"]),
        max_rss=_bytes(record["MaxRSS"]) or None,
        cpu_seconds=_cpu_time(record["TotalCPU"]),
        gpu_memory=_gpu_memory(record.get("TRESUsageInMax", "")),
        start=_moment(record["Start"]),
        end=_moment(record["End"]),
        nodes=whole(record["NNodes"]),
        max_rss_node=known(record.get("MaxRSSNode", "")),
        average_rss=_bytes(record.get("AveRSS", "")) or None,
        gpu_busiest=_gpu_busiest(record.get("TRESUsageInMax", "")),
        sampled_cpu_seconds=_cpu_time(in_tres(record.get("TRESUsageInTot", ""), "cpu")),
    )
