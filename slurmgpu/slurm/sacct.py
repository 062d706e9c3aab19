"""Accounting: jobs, their steps and every start of a job, by one sacct call. It may lag, be empty, or not exist at a site.

A requeued job keeps its id, and its earlier starts are rows of their own, which sacct shows with ``--duplicates`` only
(sacct(1)); an id that is used again after some years is another job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
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
    "FIELDS", "HISTORY", "SUBMIT_LINE", "TAKEN_OFF", "USE", "Accounting", "AccountingAnswer", "Histories", "History",
    "Start", "Step", "absence", "accounting_command", "asking", "even", "highest_exit_code", "histories_command", "in_tres",
    "parse_accounting", "parse_histories", "read_accounting", "read_histories", "read_job", "read_step", "whose",
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
"""Fields on a job's use and the ends of its steps, asked for with the steps."""


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
    """The state of accounting's answer; `available` is False where there is none or it does not answer."""

    notes: list[str] = field(default_factory=list)
    available: bool = True
    silent: bool = False
    """True if there is one, and it did not answer: what it does not say may still be so."""


@dataclass(frozen=True)
class Accounting(AccountingAnswer):
    """Records of accounting on jobs and their steps."""

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
    """Read what `accounting_command` prints; rows that are none become notes."""
    fields = _fields(submit_line, use)
    bad: list[str] = []
    notes: list[str] = []
    steps: list[Step] = []
    jobs: list[JobStatus] = []
    for row in each_row(text, len(fields), bad):
        record = dict(zip(fields, row, strict=True))
        if "." in record["JobID"]:
            steps.append(read_step(record))
        elif (job_id := JobId.parse(record["JobID"])) is not None:
            jobs.append(read_job(record, job_id))
        else:
            notes.append(f"sacct: a row with the id {record['JobID']!r} was left out: that is not a job id")
    return Accounting(jobs, steps, notes=unread("sacct", bad) + notes)


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


HISTORY = (*FIELDS, *USE, "ReqMem", "AveRSS", "MaxRSSNode", "ConsumedEnergyRaw", "TRESUsageInTot")
"""In every release from 20.11 to 26.05."""
# Slurm's words for "no value" in numbers (NO_VAL, INFINITE, and the same of 64 bits) come out of some releases as they are.
_NO_ENERGY = 1 << 32
_LARGEST_ENERGY = 1 << 60
# Between the end of a start and its return to the queue; slurmctld may have been down in between.
_GAP = timedelta(hours=1)
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Start:
    """One start of a job: its row, and those of its steps."""

    job: JobStatus
    steps: tuple[Step, ...] = ()
    memory: int | None = None
    """Memory given on all nodes together, bytes; of a job that waits, what it asks for."""
    memory_for: Literal["node", "cpu"] | None = None
    """The unit for which memory was asked, where the release says so (before 21.08)."""
    cpu_seconds: float | None = None
    """CPU time of all its steps; None where Slurm did not measure."""
    energy: int | None = None
    """Joules of its nodes; None where the site does not measure: Slurm then writes 0."""


@dataclass(frozen=True)
class History:
    """A job with all its starts, the first one first."""

    starts: tuple[Start, ...]

    @property
    def last(self) -> Start:
        """The start that counts: it ended the job, or runs, or waits."""
        return self.starts[-1]

    @property
    def job(self) -> JobStatus:
        """The job as it is now."""
        return self.starts[-1].job


@dataclass(frozen=True)
class Histories(AccountingAnswer):
    """Records of accounting on jobs and all their starts."""

    jobs: list[History] = field(default_factory=list)


def histories_command(
    *, user: str | None = None, ids: Sequence[int] = (), since: datetime | None = None
) -> list[str]:
    """Return the sacct command for all starts and steps of jobs by id, or of those of a user (None: all) since a moment."""
    return [*asking(HISTORY), "--duplicates", *whose(user, ids, since)]


def read_histories(
    slurm: Commands,
    *,
    user: str | None = None,
    ids: Sequence[int] = (),
    since: datetime | None = None,
    timeout: float = 300,
) -> Histories:
    """Ask accounting; a site without it, or one that does not answer, gives a note and no error.

    A week of a large site is many rows, so it may take `timeout` seconds.
    """
    answer = slurm.ask(histories_command(user=user, ids=ids, since=since), timeout=timeout)
    return absence(answer, Histories) or parse_histories(answer.stdout)


def parse_histories(text: str) -> Histories:
    """Read what `histories_command` prints; rows that are none become notes."""
    bad: list[str] = []
    notes: list[str] = []
    by_job: dict[tuple[str | None, str], list[Start]] = {}
    for start in _starts(text, bad, notes):
        by_job.setdefault((start.job.cluster, start.job.job_id), []).append(start)
    notes += unread("sacct", bad)
    jobs = [history for starts in by_job.values() for history in _histories(starts)]
    return Histories(jobs, notes=notes)


def _starts(text: str, bad: list[str], notes: list[str]) -> Iterator[Start]:
    """Yield each start with the steps in the rows behind it."""
    record: dict[str, str] | None = None
    job_id: JobId | None = None
    steps: list[Step] = []
    for row in each_row(text, len(HISTORY), bad):
        found = dict(zip(HISTORY, row, strict=True))
        if "." in found["JobID"]:
            if record is not None and found["JobID"].partition(".")[0] == record["JobID"]:
                steps.append(read_step(found))
            continue
        if record is not None and job_id is not None:
            yield _start(record, job_id, steps)
        record, steps = found, []
        job_id = JobId.parse(found["JobID"])
        if job_id is None:
            notes.append(f"sacct: a row with the id {found['JobID']!r} was left out: that is not a job id")
    if record is not None and job_id is not None:
        yield _start(record, job_id, steps)


_PER = re.compile(r"[KMGTP]?([cn])\Z", re.ASCII)


def _start(record: dict[str, str], job_id: JobId, steps: list[Step]) -> Start:
    per = _PER.search(record["ReqMem"].strip())
    energy = whole(record["ConsumedEnergyRaw"])
    job = read_job(record, job_id)
    if job.derived_exit_code:
        job = job.model_copy(update={"derived_exit_code": highest_exit_code(job.derived_exit_code, steps)})
    return Start(
        _that_ran(job, record),
        tuple(steps),
        memory=size(in_tres(record["AllocTRES"], "mem")) or size(in_tres(record["ReqTRES"], "mem")) or None,
        memory_for=None if per is None else "cpu" if per[1] == "c" else "node",
        cpu_seconds=_cpu_seconds(steps),
        energy=energy
        if energy and energy < _LARGEST_ENERGY and energy >> 1 != (_NO_ENERGY >> 1) - 1
        else None,
    )


def _that_ran(job: JobStatus, record: dict[str, str]) -> JobStatus:
    """Return the row of a start that ended in a requeue: the job waits again, and this start held its nodes all the same."""
    elapsed, start = whole(record["ElapsedRaw"]), moment(record["Start"])
    if not job.state.is_waiting or job.end is None or start is None or not elapsed:
        return job
    return job.model_copy(update={"elapsed": elapsed, "start": start})


def _cpu_seconds(steps: list[Step]) -> float | None:
    """CPU time of the steps; of one that was killed Slurm has less than its samples say, or nothing."""
    found = [max(known) for step in steps if (known := _times(step))]
    return sum(found) if found else None


def _times(step: Step) -> list[float]:
    return [time for time in (step.cpu_seconds, step.sampled_cpu_seconds) if time is not None]


def _histories(starts: list[Start]) -> Iterator[History]:
    """Yield the jobs that one id stood for, each with its starts."""
    if len(starts) > 1:
        starts.sort(key=lambda one: one.job.submit or one.job.start or _LONG_AGO)
    group = starts[:1]
    for start in starts[1:]:
        if not _goes_on(group[-1].job, start.job):
            yield History(tuple(group))
            group = []
        group.append(start)
    yield History(tuple(group))


def _goes_on(before: JobStatus, after: JobStatus) -> bool:
    """Return True if a row is the next start of the job: a requeue sets the time of submission anew, at the end before it."""
    if before.user != after.user or before.state is JobState.COMPLETED:
        return False
    if before.end is None or after.submit is None:
        return before.submit == after.submit
    return before.submit == after.submit or abs(after.submit - before.end) <= _GAP
