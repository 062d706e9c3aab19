"""The answer of `why` for one job: a sentence, the figures behind it, Slurm's estimate, what can be done."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from slurmgpu.amounts import count
from slurmgpu.jobs.select import scripts_of
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, PartitionNow, Present, QueuedJob

__all__ = [
    "Case",
    "Fact",
    "Mend",
    "Shape",
    "Start",
    "Told",
    "Verdict",
    "Why",
    "as_asked",
    "document",
    "gpu_option",
    "gpus",
    "listed",
]


Verdict = Literal["waits", "held", "never", "runs", "ended", "stopped", "unknown"]
"""``never``: it will not start as it is; ``held``: not before somebody releases it; ``stopped``: ended with all saved."""


class Fact(NamedTuple):
    """One thing that is so, in words and in figures. What is not known is None there, never 0."""

    what: str
    text: str
    figures: Mapping[str, object] = {}


class Mend(NamedTuple):
    """What would let the job start, and the command that does it, where there is one."""

    text: str
    command: str | None = None


class Start(NamedTuple):
    """Slurm's estimate of the start, and how it moved since an earlier look."""

    expected: datetime | None
    """None: Slurm has none (yet)."""
    before: datetime | None = None
    """What it was at the last look."""
    looked: datetime | None = None
    """When that was; None: this is the first look."""


class Shape(NamedTuple):
    """The job in another shape, and when Slurm would start that."""

    options: tuple[str, ...]
    """sbatch's options that differ from the job's; none: as it is."""
    start: datetime | None
    refused: str | None = None
    """Slurm's words, where it would not take it."""
    limit: int | None = None
    """Its time limit in seconds; None: it has none."""
    free_for: int | None = None
    """The seconds for which what is free now suffices for it, before Slurm means to start a job ahead; None: not known."""


@dataclass
class Why:
    """All that is told of a job."""

    job: JobStatus
    verdict: Verdict
    sentence: str
    facts: list[Fact] = field(default_factory=list)
    start: Start | None = None
    mends: list[Mend] = field(default_factory=list)
    shapes: list[Shape] | None = None
    """None: they were not asked for."""
    cause: Mapping[str, object] | None = None
    """What failed first in a job that has ended (``slurmgpu.cause/1``); None: nothing did, or it has not ended."""
    end: list[str] = field(default_factory=list)
    """The same in lines for people."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What could not be had, and why."""


def document(why: Why) -> dict[str, object]:
    """As JSON has it; times in ISO 8601, UTC."""
    start = why.start
    return {
        "job": why.job.model_dump(mode="json"),
        "verdict": why.verdict,
        "sentence": why.sentence,
        "facts": [{"what": one.what, "text": one.text, **_plain(one.figures)} for one in why.facts],
        "start": None if start is None else _plain(start._asdict()),
        "mends": [one._asdict() for one in why.mends],
        "shapes": None if why.shapes is None else [_plain(one._asdict()) for one in why.shapes],
        "cause": None if why.cause is None else dict(why.cause),
        "unknown": why.unknown,
    }


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
        for key, value in values.items()
    }


def gpus(number: int, types: Sequence[str] = ()) -> str:
    """`8 a100`, `1 GPU`; types come from Slurm, and are made safe for a terminal."""
    if len(types) == 1 and types[0] != "gpu":
        return f"{number:,} {printable(types[0])}"
    return count(number, "GPU")


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b and c`; of many the first, and how many more."""
    shown = [printable(name) for name in names[:most]]
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def as_asked(asked: Asked, job: JobStatus, *, without: Collection[str] = ()) -> list[str]:
    """sbatch's options for what the job asks for, but those that a shape gives itself."""
    tasks = asked.tasks or 1
    given = {
        "--partition": ",".join(asked.partitions), "--account": job.account, "--qos": job.qos,
        "--nodes": str(asked.nodes), "--ntasks": str(tasks), "--cpus-per-task": str(max(1, asked.cpus // tasks)),
        "--mem": f"{asked.per_node[2]}M" if asked.memory else None,
        "--time": str(max(1, asked.limit // 60)) if asked.limit else None,
        "--constraint": asked.features, "--reservation": asked.reservation, "--licenses": asked.licenses,
        "--nodelist": ",".join(asked.wanted_nodes), "--exclude": ",".join(asked.excluded_nodes),
        "--gpus-per-node": gpu_option(asked, asked.per_node[0]) if asked.gpus_per_node or asked.nodes == 1 else None,
        "--gpus": gpu_option(asked, asked.gpus) if asked.gpus and not asked.gpus_per_node and asked.nodes > 1 else None,
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in given.items() if value and name not in without]
    return [*words, "--exclusive"] if asked.exclusive else words


def gpu_option(asked: Asked, count: int | None) -> str | None:
    """A number of the job's GPUs as sbatch's options take it: `a100:4`."""
    if not count:
        return None
    return f"{asked.gpu_types[0]}:{count}" if len(asked.gpu_types) == 1 else str(count)


Told = Iterator[Fact | Mend]
"""What a subject yields."""


@dataclass
class Case:
    """A job that waits, what it asks for, and where to look for more."""

    job: JobStatus
    asked: Asked
    present: Present
    word: str
    now: datetime
    never: bool = False
    """Set by a subject: the job will not start as it is."""
    sentence: str = ""
    """Set by a subject that knows better than the table."""

    @property
    def partitions(self) -> list[PartitionNow]:
        """The job's partitions, those that exist."""
        there = self.present.partitions or {}
        return [there[name] for name in self.asked.partitions if name in there]

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The nodes of its partitions; of a job in a reservation, those that are the reservation's."""
        hosts = frozenset[str]().union(*(one.hosts for one in self.partitions))
        found = (
            (self.present.reservations or {}).get(self.asked.reservation) if self.asked.reservation else None
        )
        return hosts & found.hosts if found is not None and found.hosts else hosts

    @cached_property
    def queue(self) -> list[QueuedJob] | None:
        """Everybody's unfinished jobs in all partitions that have some of these nodes; None where that is not told."""
        there = (self.present.partitions or {}).values()
        sharing = [one.name for one in there if one.hosts & self.hosts]
        return self.present.queue(sharing or self.asked.partitions)

    @property
    def id(self) -> str:
        """The id for scontrol: the whole array, where its tasks wait together."""
        return self.job.job_id.partition("_[")[0]

    def change(self, option: str, value: str) -> str:
        """The command that changes the waiting job."""
        return f"scontrol update JobId={self.id} {option}={shlex.quote(value)}"

    def again(self, *options: str) -> str:
        """The commands that take it out of the queue and submit it in another way, with all else that it asks for."""
        script = self.asked.script or self.job.script
        if script is None or scripts_of(self.job):
            return f"slurmgpu cancel {self.id}  # then submit its job file again with {' '.join(options)}"
        names = {one.partition("=")[0] for one in options}
        if "--gpus" in names:
            names |= {"--gpus-per-node"}
        words = [*as_asked(self.asked, self.job, without=names), *options]
        return f"slurmgpu cancel {self.id} && sbatch {shlex.join(words)} {shlex.quote(script.split()[0])}"
