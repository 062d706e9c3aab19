"""The queue by squeue, each row read by the names of its fields; and what running jobs use by sstat, only on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from sys import intern
from typing import Generic, TypeVar

from slurmgpu.errors import SlurmRefused
from slurmgpu.lines.slurm import expand
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm.commands import READ_TIMEOUT, Commands, unreachable
from slurmgpu.slurm.text import (
    SEPARATOR,
    GpuCount,
    JobId,
    each_row,
    expand_pattern,
    gpus_of_job,
    known,
    meaning_of,
    mib,
    moment,
    often,
    read_gpus,
    rows,
    seconds,
    size,
    unread,
    whole,
)

__all__ = [
    "FIELDS", "PARTITION_FIELDS", "REQUEST_FIELDS", "QueuedJob", "StepUse", "live_use_command", "parse_jobs",
    "parse_live_use", "parse_queue", "partition_queue_command", "queue_command", "read_live_use", "read_queue",
    "request_command", "request_fields",
]  # fmt: skip

# All of these are in every release from 20.11 on; one unknown name would make squeue refuse the whole call.
# The first two are what a row is recognised by.
FIELDS = (
    "JobArrayID", "JobID", "Cluster", "UserName", "Account", "Partition", "QOS", "State", "Reason",
    "TimeUsed", "TimeLimit", "TimeLeft", "SubmitTime", "StartTime", "EndTime", "NumNodes", "NumCPUs",
    "NodeList", "tres-alloc", "tres-per-job", "tres-per-node", "RestartCnt", "exit_code", "Name",
    "WorkDir", "StdOut", "StdErr", "Command", "Dependency",
)  # fmt: skip
PARTITION_FIELDS = (
    "JobArrayID", "JobID", "UserName", "Account", "QOS", "Partition", "State", "PriorityLong", "TimeLimit", "StartTime",
    "EndTime", "NumNodes", "NumCPUs", "NodeList", "tres-alloc", "tres-per-job", "tres-per-node", "Reason",
)  # fmt: skip
"""Of everybody's jobs in a partition, as few as it takes; nothing here is free text but the reason."""
REQUEST_FIELDS = (
    "JobArrayID", "JobID", "Partition", "State", "Reason", "PriorityLong", "EligibleTime", "StartTime", "Deadline", "TimeLimit",
    "NumNodes", "NumCPUs", "NumTasks", "MinMemory", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task",
    "Feature", "ReqNodes", "ExcNodes", "SchedNodes", "Reservation", "Licenses", "OverSubscribe", "Dependency", "Command",
)  # fmt: skip
"""All that one job asks for; `scontrol show job` has no more to say, and puts the job's name, which may hold anything, first."""


def request_fields(*, exclusive: bool) -> tuple[str, ...]:
    """Return the fields of a request; who gets whole nodes is told by OverSubscribe up to 24.11, by Exclusive in 26.05."""
    return tuple("Exclusive" if exclusive and name == "OverSubscribe" else name for name in REQUEST_FIELDS)


def _command(fields: Sequence[str], *which: str) -> list[str]:
    names = ",".join(f"{name}:{SEPARATOR}" for name in fields)
    return ["squeue", "--noheader", "--noconvert", *which, "-O", names]


def queue_command(user: str | None) -> list[str]:
    """Return the squeue command for one user's jobs (None: everybody's).

    Finished jobs are asked for, too: the controller remembers them for some minutes (MinJobAge), and what it
    says is never behind, as accounting can be.
    """
    return _command(FIELDS, "--states=all", *([] if user is None else [f"--user={user}"]))


def partition_queue_command(partitions: Sequence[str]) -> list[str]:
    """Return the squeue command for everybody's jobs in some partitions that hold nodes, or wait for some."""
    states = "--states=PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING"
    return _command(PARTITION_FIELDS, "--all", f"--partition={','.join(partitions)}", states)


def request_command(number: int, fields: Sequence[str] = REQUEST_FIELDS) -> list[str]:
    """Return the squeue command for all that one job asks for; of one job alone the controller sends no other."""
    return _command(fields, "--states=all", f"--jobs={number}")


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
    """Read what `queue_command` prints; rows that are none become notes."""
    bad: list[str] = []
    odd: list[str] = []
    jobs: list[JobStatus] = []
    for row in each_row(text, len(FIELDS), bad):
        fields = dict(zip(FIELDS, row, strict=True))
        shown = fields["JobArrayID"].strip()
        if (job_id := JobId.parse(shown)) is not None:
            jobs.append(_job(fields, shown, job_id))
        else:
            odd.append(f"squeue: a row with the id {shown!r} was left out: that is not a job id")
    return jobs, unread("squeue", bad) + odd


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


T = TypeVar("T")


class _Field(Generic[T]):
    """A field of a row by its name, read when it is first wanted, and remembered; one that was not asked for is unknown."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name, self.read = name, read

    def __set_name__(self, _: type, attribute: str) -> None:
        self.attribute = attribute

    def __get__(self, job: QueuedJob, _: type) -> T:
        found = job.__dict__[self.attribute] = self.read(job.text(self.name))
        return found


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(expand(known(text) or ""))


class QueuedJob:
    """A row of the queue; what is not wanted is not read, since there may be ten thousands.

    A field that was not asked for is unknown. Memory is in MiB, over all nodes; times are aware.
    """

    def __init__(self, at: Mapping[str, int], row: list[str]) -> None:
        self._at, self._row = at, row
        self.shown = row[0].strip()
        self.number = whole(row[1]) or 0

    def changed(self, **values: object) -> QueuedJob:
        """Return the job with other values of what it asks for."""
        other = QueuedJob(self._at, self._row)
        other.__dict__ |= values
        return other

    def text(self, name: str) -> str:
        """Return a field as squeue prints it; empty where it was not asked for."""
        at = self._at.get(name)
        return "" if at is None else self._row[at]

    user = _Field("UserName", known)
    account = _Field("Account", known)
    qos = _Field("QOS", known)
    partitions = _Field("Partition", lambda text: tuple(text.strip().split(",")) if known(text) else ())
    """Those that it may start in; one, once it runs."""
    waits = _Field("State", lambda text: JobState.parse(text).is_waiting)
    """True if it has no nodes yet."""
    reason = _Field("Reason", str.strip)
    """Why it waits, as Slurm has it."""
    priority = _Field("PriorityLong", whole)
    """0: it is held, and not considered; None: Slurm does not tell."""
    eligible = _Field("EligibleTime", moment)
    """From when on Slurm considers it (--begin, a dependency)."""
    start = _Field("StartTime", moment)
    """When it started; while it waits, Slurm's estimate."""
    end = _Field("EndTime", moment)
    """When its time limit ends it; None: never, or not known."""
    limit = _Field("TimeLimit", seconds)
    """Its time limit in seconds; None: it has none."""
    nodes = _Field("NumNodes", lambda text: whole(text) or 1)
    """Number of nodes that it has or asks for; CPUs and tasks likewise."""
    cpus = _Field("NumCPUs", lambda text: whole(text) or 1)
    tasks = _Field("NumTasks", whole)
    hosts = _Field("NodeList", _hosts)
    """The nodes that it has."""
    wanted_nodes = _Field("ReqNodes", _hosts)
    excluded_nodes = _Field("ExcNodes", _hosts)
    features = _Field("Feature", known)
    reservation = _Field("Reservation", known)
    licenses = _Field("Licenses", known)
    dependency = _Field("Dependency", known)
    script = _Field("Command", known)

    @property
    def array_tasks(self) -> int:
        """Return the number of jobs that the row stands for: tasks of an array that wait together."""
        match = re.search(r"_\[([^\]]*)\]", self.shown)
        count = 0
        for part in match[1].partition("%")[0].split(",") if match else ():
            span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip(), re.ASCII)
            if span:
                low, high, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1) or 1
                count += max(0, high - low) // step + 1
        return max(1, count)

    @cached_property
    def memory(self) -> int | None:
        """None where Slurm does not tell."""
        match = re.search(r"(?:^|,)mem=([^,]+)", self.text("tres-alloc"))
        return mib(match[1]) if match else None

    @property
    def _gpu_count(self) -> GpuCount | None:
        names = ("tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task")
        return _gpus(*map(self.text, names), nodes=self.nodes)

    @cached_property
    def gpus(self) -> int | None:
        """Its GPUs; None where Slurm does not tell."""
        found = self._gpu_count
        return found.count if found else None

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The types of these, as far as they are named."""
        found = self._gpu_count
        return tuple(found.types) if found else ()

    @cached_property
    def gpus_per_node(self) -> int | None:
        """None: it leaves the spreading to Slurm."""
        found = read_gpus(self.text("tres-per-node"))
        return found.count if found else None

    @property
    def exclusive(self) -> bool:
        """True if it gets whole nodes."""
        whole_nodes = self.text("Exclusive").strip().upper() in {"NODE", "TOPO"}
        return whole_nodes or self.text("OverSubscribe").strip().upper() in {"NO", "EXCLUSIVE"}

    @property
    def per_node(self) -> tuple[int, int, int]:
        """GPUs, CPUs and MiB that each of its nodes needs at least, where they are spread evenly."""
        gpus = self.gpus_per_node if self.gpus_per_node is not None else -(-(self.gpus or 0) // self.nodes)
        return gpus, -(-self.cpus // self.nodes), -(-(self.memory or 0) // self.nodes)

    @property
    def least(self) -> tuple[int, int, int]:
        """GPUs, CPUs and MiB without which a node is of no use to it, however Slurm spreads it.

        GPUs that are asked for in all (--gpus), and tasks without a number for each node, may go to more nodes than the
        fewest that are asked for.
        """
        gpus, cpus, memory = self.per_node
        tasks = self.tasks or 1
        if self.gpus and self.gpus_per_node is None:
            return 1, 1, 0
        return (gpus, cpus, memory) if tasks <= self.nodes else (gpus, max(1, self.cpus // tasks), 0)


@lru_cache(maxsize=4096)
def _gpus(allocated: str, per_job: str, per_node: str, per_task: str, *, nodes: int) -> GpuCount | None:
    """Count the GPUs, with the types of the request where accounting counts them without; many jobs ask for the same."""
    found = gpus_of_job(allocated, per_job, per_node, nodes)
    if found is None or found.types or not found.count:
        return found
    named = (one.types for text in (per_job, per_node, per_task) if (one := read_gpus(text)) and one.types)
    types = next(named, {})
    return GpuCount(found.count, {next(iter(types)): found.count}) if len(types) == 1 else found


def parse_jobs(text: str, fields: Sequence[str]) -> list[QueuedJob]:
    """Read what squeue prints of these fields: a row for each task of an array that is by itself; others are left out."""
    at = {name: index for index, name in enumerate(fields)}
    return [QueuedJob(at, row) for row in rows(text, len(fields))[0]]


LIVE_USE_FIELDS = ("JobID", "NTasks", "AveCPU", "MaxRSS")


@dataclass(frozen=True)
class StepUse:
    """Use of one running step, over its tasks."""

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
    """Read what `live_use_command` prints; lines that are not rows are passed over."""
    found = []
    for line in text.split("\n"):
        parts = line.split("|")
        job, _, step = parts[0].partition(".")
        number = whole(job)
        if len(parts) != len(LIVE_USE_FIELDS) or number is None or not step:
            continue
        found.append(StepUse(number, step, whole(parts[1]), seconds(parts[2]), size(parts[3])))
    return found
