"""Who is ahead of a job in the queue, and how Slurm's estimate of its start has moved since the last look."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.files.run_record import write_atomically
from slurmgpu.jobs.waits import about, word_of
from slurmgpu.jobs.why.answer import Start
from slurmgpu.models.run import JobStatus

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, PartitionNow, QueuedJob

__all__ = ["Ahead", "ahead_of", "remembered"]


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


SCHEMA = "slurmgpu.estimates/1"
MOST_JOBS = 200
"""Of more, those looked at longest ago are forgotten."""
MOST_BYTES = 128 * 1024


def remembered(job: JobStatus, expected: datetime | None, now: datetime, environ: Mapping[str, str]) -> Start:
    """The estimate beside that of the last look, which it takes the place of.

    A cache that cannot be read or written is none: the estimate alone is returned.
    """
    path = _file(job, environ)
    known = _read(path)
    key = f"{job.job_id} {job.submit.isoformat() if job.submit else ''}"
    before = known.pop(key, None)
    known[key] = {"looked": _text(now), "expected": _text(expected)}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = dict(list(known.items())[-MOST_JOBS:])
        write_atomically(path, json.dumps({"schema": SCHEMA, "jobs": kept}) + "\n")
    if before is None:
        return Start(expected)
    return Start(expected, _moment(before.get("expected")), _moment(before.get("looked")))


def _file(job: JobStatus, environ: Mapping[str, str]) -> Path:
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cluster = re.sub(r"[^A-Za-z0-9_.-]", "-", job.cluster or "unknown")[:60].strip(".") or "unknown"
    return cache / "slurmgpu" / "estimates" / f"{cluster}.json"


def _read(path: Path) -> dict[str, dict[str, object]]:
    """What the file says, the oldest look first; {} where it is not there, somebody else's, or damaged."""
    try:
        with path.open("rb") as file:
            there = os.fstat(file.fileno())
            if there.st_uid != os.getuid() or there.st_size > MOST_BYTES:
                return {}
            document = json.loads(file.read(MOST_BYTES))
        jobs = document["jobs"] if document["schema"] == SCHEMA else {}
        return {key: one for key, one in jobs.items() if isinstance(one, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).isoformat(timespec="seconds")


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo else None
