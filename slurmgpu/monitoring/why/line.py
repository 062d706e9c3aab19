"""Who is ahead of a job in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurmgpu.monitoring.waits import about, word_of

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, PartitionNow, QueuedJob

__all__ = ["Ahead", "ahead_of"]

# What waits for these does not compete for nodes now, whatever its priority.
_OUT = frozenset(
    {"held", "begin", "dependency", "array", "limit", "account", "qos", "time", "size", "reservation"}
)


@dataclass(frozen=True)
class Ahead:
    """The waiting jobs that Slurm looks at before a job."""

    jobs: int = 0
    """Each task of an array counts."""
    gpus: int | None = 0
    """What they ask for in all; None where Slurm does not tell of one of them."""
    mine: int = 0
    """Those of the job's own user."""
    tiers: int = 0
    """Those in other partitions with the same nodes, and a higher PriorityTier."""
    out: int = 0
    """Those that stand before it, and are held back by something else than nodes."""
    waiting: int = 0
    """All that wait in the job's partitions, the job itself included."""


def ahead_of(
    asked: Asked, user: str | None, queue: Sequence[QueuedJob], partitions: Mapping[str, PartitionNow]
) -> Ahead:
    """Count them by the controller's order: PriorityTier, priority, then the older id (sort_job_queue2 of job_scheduler.c)."""
    own = frozenset(asked.partitions)
    tiers = {name: one.tier for name, one in partitions.items()}
    tier = max((tiers.get(name, 0) for name in own), default=0)
    number, plus, _ = asked.shown.partition("+")
    whole = number + plus if plus else ""
    place = (tier, asked.priority or 0, -asked.number)
    jobs = mine = by_tier = out = waiting = 0
    gpus: int | None = 0
    for job in queue:
        if not job.waits:
            continue
        theirs = job.partitions
        here = not own.isdisjoint(theirs)
        waiting += job.tasks if here else 0
        top = max(tiers.get(name, 0) for name in theirs)
        if job.number == asked.number or not job.priority:
            continue
        if whole and job.shown.startswith(whole):
            continue  # another component of the same job: they start together
        if (top, job.priority, -job.number) <= place or (not here and top <= tier):
            continue
        if about(word_of(job.reason)) in _OUT:
            out += job.tasks
            continue
        count = job.tasks
        jobs += count
        by_tier += 0 if here else count
        mine += count if job.user == user else 0
        asks = job.gpus
        gpus = None if asks is None or gpus is None else gpus + asks.count * count
    return Ahead(jobs, gpus, mine, by_tier, out, waiting)
