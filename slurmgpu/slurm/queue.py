"""The queue as everybody has it, in as few fields as it takes, and what one waiting job asks for, in all."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache

from slurmgpu.lines.slurm import expand
from slurmgpu.models.run import JobState
from slurmgpu.slurm.text import (
    SEPARATOR,
    GpuCount,
    gpus_of_job,
    known,
    moment,
    read_gpus,
    rows,
    seconds,
    size,
    whole,
)

__all__ = [
    "Asked", "QueuedJob", "parse_partition_queue", "parse_request", "partition_queue_command", "request_command",
]  # fmt: skip


# In every release from 20.11 on. JobArrayID and JobID mark a row; nothing here is free text but the reason.
PARTITION_FIELDS = (
    "JobArrayID", "JobID", "UserName", "Account", "QOS", "Partition", "State", "PriorityLong", "TimeLimit", "StartTime",
    "EndTime", "NumNodes", "NumCPUs", "NodeList", "tres-alloc", "tres-per-job", "tres-per-node", "Reason",
)  # fmt: skip

STATES = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING"
"""Of the jobs that hold nodes, or wait for some."""


def partition_queue_command(partitions: Sequence[str]) -> list[str]:
    """Return the squeue command for everybody's unfinished jobs in some partitions."""
    fields = ",".join(f"{name}:{SEPARATOR}" for name in PARTITION_FIELDS)
    where = f"--partition={','.join(partitions)}"
    return ["squeue", "--noheader", "--noconvert", "--all", where, f"--states={STATES}", "-O", fields]


class QueuedJob:
    """A row of the queue; what is not wanted is not read, since there may be ten thousands."""

    __slots__ = ("_row", "number", "priority", "shown")

    def __init__(self, row: list[str]) -> None:
        self._row = row
        self.shown = row[0].strip()
        self.number = whole(row[1]) or 0
        self.priority = whole(row[7]) or 0
        """0: it is held, and not considered."""

    @property
    def user(self) -> str | None:
        """Whose it is."""
        return known(self._row[2])

    @property
    def account(self) -> str | None:
        """What it is charged to."""
        return known(self._row[3])

    @property
    def qos(self) -> str | None:
        """Its QOS."""
        return known(self._row[4])

    @property
    def partitions(self) -> list[str]:
        """Those that it may start in; one, once it runs."""
        return self._row[5].strip().split(",")

    @property
    def waits(self) -> bool:
        """True if it has no nodes yet."""
        return JobState.parse(self._row[6]).is_waiting

    @property
    def reason(self) -> str:
        """Why it waits, as Slurm has it."""
        return self._row[17].strip()

    @property
    def tasks(self) -> int:
        """How many jobs the row stands for: tasks of an array that wait together."""
        match = re.search(r"_\[([^\]]*)\]", self.shown)
        return _tasks(match[1]) if match else 1

    @property
    def start(self) -> datetime | None:
        """When it started; while it waits, Slurm's estimate."""
        return moment(self._row[9])

    @property
    def end(self) -> datetime | None:
        """When its time limit ends it; None: never, or not known."""
        return moment(self._row[10])

    @property
    def limit(self) -> int | None:
        """Its time limit in seconds; None: it has none."""
        return seconds(self._row[8])

    @property
    def nodes(self) -> int | None:
        """How many nodes it has or asks for."""
        return whole(self._row[11])

    @property
    def cpus(self) -> int | None:
        """How many CPUs it has or asks for."""
        return whole(self._row[12])

    @property
    def hosts(self) -> list[str]:
        """The nodes that it has."""
        return expand(known(self._row[13]) or "")

    @property
    def memory(self) -> int | None:
        """Its memory over all nodes, in MiB; None where Slurm does not tell."""
        return _memory(self._row[14])

    @property
    def gpus(self) -> GpuCount | None:
        """Its GPUs; None where Slurm does not tell."""
        return _gpus(self._row[14], self._row[15], self._row[16], self.nodes)


@lru_cache(maxsize=4096)
def _gpus(allocated: str, per_job: str, per_node: str, nodes: int | None) -> GpuCount | None:
    """Many jobs ask for the same: each text is read once."""
    return _typed(gpus_of_job(allocated, per_job, per_node, nodes), per_job, per_node)


def _memory(tres: str) -> int | None:
    """Return the MiB in `cpu=4,mem=16G,node=1`."""
    match = re.search(r"(?:^|,)mem=([^,]+)", tres)
    found = size(match[1], "M") if match else None
    return None if found is None else -(-found // 1024**2)


def _typed(found: GpuCount | None, *requests: str) -> GpuCount | None:
    """With the types of the request, where accounting counts GPUs without them."""
    if found is None or found.types or not found.count:
        return found
    types = next((asked.types for text in requests if (asked := read_gpus(text)) and asked.types), {})
    return GpuCount(found.count, {next(iter(types)): found.count}) if len(types) == 1 else found


def _tasks(text: str) -> int:
    count = 0
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip(), re.ASCII)
        if match:
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1) or 1
            count += max(0, high - low) // step + 1
    return max(1, count)


def parse_partition_queue(text: str) -> list[QueuedJob]:
    """Read what `queue_command` prints; rows that are none are left out."""
    good, _ = rows(text, len(PARTITION_FIELDS))
    return [QueuedJob(row) for row in good]


REQUEST_FIELDS = (
    "JobArrayID", "JobID", "Partition", "State", "Reason", "PriorityLong", "EligibleTime", "StartTime", "Deadline", "TimeLimit",
    "NumNodes", "NumCPUs", "NumTasks", "MinMemory", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task",
    "Feature", "ReqNodes", "ExcNodes", "SchedNodes", "Reservation", "Licenses", "OverSubscribe", "Dependency", "Command",
)  # fmt: skip


def request_command(number: int, *, exclusive: bool = False) -> list[str]:
    """Return the squeue command for all that one job asks for; of one job alone the controller sends no other.

    `scontrol show job` has no more to say, and puts the job's name, which may hold anything, before it. ``exclusive``: in
    place of OverSubscribe, which tells who gets whole nodes up to 24.11, there is Exclusive, as 26.05 has it.
    """
    names = ("Exclusive" if exclusive and name == "OverSubscribe" else name for name in REQUEST_FIELDS)
    fields = ",".join(f"{name}:{SEPARATOR}" for name in names)
    return ["squeue", "--noheader", "--noconvert", "--states=all", f"--jobs={number}", "-O", fields]


@dataclass(frozen=True)
class Asked:
    """What a waiting job asks for, beside what its status says. Memory is in MiB, times are aware."""

    shown: str
    number: int
    partitions: tuple[str, ...] = ()
    waits: bool = True
    """False: it has started, or ended, meanwhile."""
    reason: str = ""
    priority: int | None = None
    eligible: datetime | None = None
    """From when on Slurm considers it (--begin, a dependency)."""
    start: datetime | None = None
    """Slurm's estimate."""
    deadline: datetime | None = None
    limit: int | None = None
    """Seconds; None: unlimited."""
    nodes: int = 1
    cpus: int = 1
    tasks: int | None = None
    memory: int | None = None
    """Over all its nodes; None where Slurm does not tell."""
    gpus: int | None = None
    gpu_types: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    """None: it leaves the spreading to Slurm."""
    features: str | None = None
    wanted_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    planned_nodes: str | None = None
    """Where Slurm's estimate would start it."""
    reservation: str | None = None
    licenses: str | None = None
    exclusive: bool = False
    dependency: str | None = None
    script: str | None = None

    @cached_property
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


def parse_request(text: str, *, exclusive: bool = False) -> list[Asked]:
    """Read what `asked_command` prints: a row for each task of an array that is by itself."""
    good, _ = rows(text, len(REQUEST_FIELDS))
    whole_nodes = {"NODE", "TOPO"} if exclusive else {"NO", "EXCLUSIVE"}
    return [_asked(dict(zip(REQUEST_FIELDS, row, strict=True)), whole_nodes) for row in good]


def _asked(row: dict[str, str], whole_nodes: Collection[str]) -> Asked:
    nodes = whole(row["NumNodes"]) or 1
    per_node = read_gpus(row["tres-per-node"])
    found = gpus_of_job(row["tres-alloc"], row["tres-per-job"], row["tres-per-node"], nodes)
    found = _typed(found, row["tres-per-job"], row["tres-per-node"], row["tres-per-task"])
    return Asked(
        shown=row["JobArrayID"].strip(),
        number=whole(row["JobID"]) or 0,
        partitions=tuple((known(row["Partition"]) or "").split(",")) if known(row["Partition"]) else (),
        waits=JobState.parse(row["State"]).is_waiting,
        reason=row["Reason"].strip(),
        priority=whole(row["PriorityLong"]),
        eligible=moment(row["EligibleTime"]),
        start=moment(row["StartTime"]),
        deadline=moment(row["Deadline"]),
        limit=seconds(row["TimeLimit"]),
        nodes=nodes,
        cpus=whole(row["NumCPUs"]) or 1,
        tasks=whole(row["NumTasks"]),
        memory=_memory(row["tres-alloc"]),
        gpus=found.count if found else None,
        gpu_types=tuple(found.types) if found else (),
        gpus_per_node=per_node.count if per_node else None,
        features=known(row["Feature"]),
        wanted_nodes=tuple(expand(known(row["ReqNodes"]) or "")),
        excluded_nodes=tuple(expand(known(row["ExcNodes"]) or "")),
        planned_nodes=known(row["SchedNodes"]),
        reservation=known(row["Reservation"]),
        licenses=known(row["Licenses"]),
        exclusive=row["OverSubscribe"].strip().upper() in whole_nodes,
        dependency=known(row["Dependency"]),
        script=known(row["Command"]),
    )
