"""Where a job would fit: what is free on its nodes, when there is more, who is ahead, and how its estimate has moved."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.amounts import count, memory_text, time_of_day
from slurmgpu.files.run_record import write_atomically
from slurmgpu.jobs.waits import about, word_of
from slurmgpu.jobs.why.answer import Case, Fact, Start, gpus, listed
from slurmgpu.models.run import JobStatus
from slurmgpu.planning.nodes import has_features
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, NodeNow, PartitionNow, Present, QueuedJob

__all__ = [
    "Ahead",
    "Release",
    "Room",
    "ahead_of",
    "ahead_text",
    "elsewhere",
    "remembered",
    "room_facts",
    "room_for",
]


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
    """Return the estimate beside that of the last look, which it takes the place of.

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
    """Return what the file says, the oldest look first; {} where it is not there, somebody else's, or damaged."""
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


class Release(NamedTuple):
    """A running job that ends, at its time limit at the latest, and what it leaves on the nodes in question."""

    at: datetime
    job_id: str
    user: str | None
    gpus: int
    nodes: int


@dataclass(frozen=True)
class Room:
    """What the nodes that a job may use have. Counts are of the GPUs that it asks for, or of CPUs where it asks for none."""

    able: tuple[NodeNow, ...]
    """Nodes that could ever run their share of it."""
    never: dict[str, int] = field(default_factory=dict)
    """Of the nodes in its partitions that could not: how many are how."""
    unseen: int = 0
    """Nodes of its partitions that are not shown: nodes in the cloud without power, or those of others."""
    away: dict[str, int] = field(default_factory=dict)
    """Of the able, how many are down, drained, reserved or planned for another."""
    total: int = 0
    away_gpus: int = 0
    """GPUs on able nodes that take no jobs now."""
    free: int = 0
    """GPUs that nobody has, on able nodes that take jobs."""
    block: int = 0
    """Of these, the most on one node."""
    blocked: int = 0
    """Of these, on nodes whose CPUs or memory do not suffice for a share of the job."""
    blocked_by: str = ""
    """``CPUs``, ``memory`` or both; ``other jobs``: it wants whole nodes, and these have some."""
    fitting: int = 0
    """Nodes on which a share of it fits now."""
    releases: tuple[Release, ...] = ()
    """The first that bring what it asks for, in their order."""
    enough: datetime | None = None
    """When there is room for all of it at the latest, if no other job takes it."""


class _Left:
    """What is free on a node, as jobs end."""

    __slots__ = ("cpus", "gpus", "jobs", "memory")

    def __init__(self, node: NodeNow, types: Sequence[str]) -> None:
        self.gpus = sum(map(node.free, types)) if types else node.free()
        self.cpus, self.memory = node.cpus_free, node.memory_free
        self.jobs: int | None = None
        """How many jobs are on it, where whole nodes are asked for."""

    def fits(self, share: tuple[int, int, int]) -> bool:
        gpus, cpus, memory = share
        if self.jobs:
            return False
        return self.gpus >= gpus and self.cpus >= cpus and (self.memory is None or self.memory >= memory)


def room_for(
    asked: Asked,
    nodes: Iterable[NodeNow],
    hosts: frozenset[str],
    running: Sequence[QueuedJob],
    *,
    whole_nodes: bool = False,
) -> Room:
    """Return what there is for a job on the nodes of its partitions.

    ``running``: all jobs that may hold some of them. ``whole_nodes``: it gets whole ones.
    """
    seen = [node for node in nodes if node.name in hosts]
    able, never = _able(asked, seen)
    share = asked.per_node
    types = asked.gpu_types
    # A job in a reservation is told of its nodes alone, and may have those.
    able = [replace(one, away="") if asked.reservation and one.away == "reserved" else one for one in able]
    usable = [node for node in able if node.away in ("", "planned")]
    left = {node.name: _Left(node, types) for node in usable}
    if whole_nodes:
        _count_jobs(usable, left, running)
    counted = [sum(node.gpus[one] for one in _types(node, types)) for node in able]
    tight = [one for one in left.values() if one.gpus and not one.fits((0, share[1], share[2]))]
    away: dict[str, int] = {}
    for node in able:
        if node.away:
            away[node.away] = away.get(node.away, 0) + 1
    now = Room(
        able=tuple(able),
        never=never,
        unseen=len(hosts) - len(seen),
        away=away,
        total=sum(counted),
        away_gpus=sum(count for node, count in zip(able, counted, strict=True) if node.name not in left),
        free=sum(one.gpus for one in left.values()),
        block=max((one.gpus for one in left.values()), default=0),
        blocked=sum(one.gpus for one in tight),
        blocked_by=_lacking(tight, share),
        fitting=sum(one.fits(share) for one in left.values()),
    )
    # Last: it plays through how the nodes empty.
    releases, enough = _releases(asked, left, running, types)
    return replace(now, releases=releases, enough=enough)


def _count_jobs(usable: Iterable[NodeNow], left: Mapping[str, _Left], running: Sequence[QueuedJob]) -> None:
    for node in usable:
        left[node.name].jobs = 1 if node.cpus_used else 0  # at least, should the queue not be shown
    counts = Counter(host for job in running if not job.waits for host in job.hosts)
    for name, one in left.items():
        one.jobs = max(one.jobs or 0, counts[name])


def _types(node: NodeNow, types: Sequence[str]) -> list[str]:
    return [name for name in node.gpus if not types or name in types]


_TAKEN = "other jobs"


def _lacking(tight: Sequence[_Left], share: tuple[int, int, int]) -> str:
    if any(one.jobs for one in tight):
        return _TAKEN
    short = ["CPUs"] if any(one.cpus < share[1] for one in tight) else []
    short += ["memory"] if any(one.memory is not None and one.memory < share[2] for one in tight) else []
    return " or ".join(short)


def _able(asked: Asked, nodes: Sequence[NodeNow]) -> tuple[list[NodeNow], dict[str, int]]:
    """Return the nodes that could run a share of the job if they were empty, and how many could not, and why."""
    able, never = [], dict[str, int]()
    for node in nodes:
        why = _unable(asked, node)
        if why:
            never[why] = never.get(why, 0) + 1
        else:
            able.append(node)
    return able, never


def _unable(asked: Asked, node: NodeNow) -> str:
    gpus, cpus, memory = asked.least
    if node.name in asked.excluded_nodes:
        return "excluded by the job"
    if asked.wanted_nodes and node.name not in asked.wanted_nodes and len(asked.wanted_nodes) >= asked.nodes:
        return "not among those that it names"
    if asked.features and has_features(asked.features, node.features) is False:
        return f"without the features {asked.features}"
    if gpus and not _types(node, asked.gpu_types):
        return f"without {' or '.join(asked.gpu_types)}" if asked.gpu_types else "without GPUs"
    if gpus > sum(node.gpus[one] for one in _types(node, asked.gpu_types)):
        return f"without {count(gpus, 'GPU')}"
    if cpus > node.cpus:
        return f"without {count(cpus, 'CPU')}"
    if node.memory is not None and memory > node.memory:
        return f"without {memory_text(memory)}"
    return ""


def _fits(asked: Asked, left: dict[str, _Left]) -> bool:
    if asked.gpus_per_node is None and asked.gpus:
        # Slurm spreads them as it likes, over as many nodes as it asks for at least.
        held = sorted((one.gpus for one in left.values() if one.fits((0, *asked.per_node[1:]))), reverse=True)
        return len(held) >= asked.nodes and sum(held[: asked.nodes]) >= asked.gpus
    return sum(one.fits(asked.per_node) for one in left.values()) >= asked.nodes


MOST_RELEASES = 3


def _releases(
    asked: Asked, left: dict[str, _Left], running: Sequence[QueuedJob], types: Sequence[str]
) -> tuple[tuple[Release, ...], datetime | None]:
    """Return the first jobs to end that leave what is asked for; and when there is room for all of it."""
    if _fits(asked, left):
        return (), None
    ending = sorted(
        ((job.end, job) for job in running if not job.waits and job.end is not None), key=lambda one: one[0]
    )
    found: list[Release] = []
    for end, job in ending:
        hosts = job.hosts
        here = [left[name] for name in hosts if name in left]
        if not here:
            continue
        gpus = job.gpus
        counts = not types or not gpus or not gpus.types or any(name in gpus.types for name in types)
        share = (gpus.count if gpus and counts else 0) / len(hosts)
        memory = job.memory
        for one in here:
            one.gpus += round(share)
            one.cpus += round((job.cpus or 0) / len(hosts))
            one.memory = None if one.memory is None else one.memory + round((memory or 0) / len(hosts))
            one.jobs = None if one.jobs is None else max(0, one.jobs - 1)
        if len(found) < MOST_RELEASES and (share or not asked.gpus):
            found.append(Release(end, job.shown, job.user, round(share * len(here)), len(here)))
        if _fits(asked, left):
            return tuple(found), end
    return tuple(found), None


def elsewhere(job: JobStatus, asked: Asked, present: Present) -> Iterator[PartitionNow]:
    """Other open partitions with nodes for the job, that allow its time limit and take its account and QOS."""
    nodes = {one.name: one for one in present.nodes or ()}
    for one in (present.partitions or {}).values():
        rules = one.rules
        if one.name in asked.partitions or one.state != "UP" or rules.by_name or rules.groups:
            continue
        if not rules.takes_account(job.account) or not rules.takes_qos(job.qos):
            continue
        most = rules.limits.max_time
        if (
            most is not None
            and most.seconds is not None
            and (asked.limit is None or asked.limit > most.seconds)
        ):
            continue
        if rules.limits.max_nodes is not None and asked.nodes > rules.limits.max_nodes:
            continue
        able, _ = _able(asked, [nodes[host] for host in one.hosts if host in nodes])
        if len([node for node in able if node.away in ("", "planned")]) >= asked.nodes:
            yield one


_ROOM_NOW = {
    "room": "there is room for it now, as far as nodes go: it waits for its turn",
    "soon": "there is room for it now",
}


def ahead_text(found: Ahead, asked: Asked) -> str:
    """Return how many jobs are ahead, and of which kind."""
    where = listed(asked.partitions) or "the queue"
    if not found.jobs:
        text = f"no job is ahead of it in {where}"
    else:
        text = f"{count(found.jobs, 'job')} {'is' if found.jobs == 1 else 'are'} ahead of it in {where}"
        parts = [f"asking for {gpus(found.gpus)}"] if found.gpus else []
        if found.mine:
            parts += [
                f"{found.mine:,} of these jobs {'is' if found.mine == 1 else 'are'} yours"
                if found.jobs > 1
                else "yours"
            ]
        if found.tiers:
            which = (
                "in a partition that comes" if found.jobs == 1 else f"{found.tiers:,} in partitions that come"
            )
            parts += [f"{which} first on these nodes"]
        text += f" ({'; '.join(parts)})" if parts else ""
    if found.out:
        text += f"; {found.out:,} more before it cannot start now, whatever is free"
    return text


def room_facts(asked: Asked, room: Room, case: Case, about: str) -> Iterator[Fact]:
    """Yield what is free for the job, and when there is more."""
    if (
        (len(room.able) < asked.nodes or room.total < (asked.gpus or 0))
        and case.partitions
        and not room.unseen
    ):
        case.never = True
        lacking = [
            f"{count(number, 'node')} {'is' if number == 1 else 'are'} {printable(why)}"
            for why, number in room.never.items()
        ]
        able = f"only {count(len(room.able), 'node')}" if room.able else "no node"
        text = f"{able} of its partition could run a share of it, and it asks for {asked.nodes}"
        if len(room.able) >= asked.nodes:
            text = f"the nodes of its partition have {gpus(room.total, asked.gpu_types)} in all"
        yield Fact("room", "; ".join([text, *lacking[:4]]),
                   {"able": len(room.able), "asked": asked.nodes, "lacking": room.never})  # fmt: skip
        return
    if asked.gpus:
        yield Fact("room", _gpus_free(asked, room), {
            "free": room.free, "block": room.block, "total": room.total, "away_gpus": room.away_gpus, "away": room.away,
            "blocked": room.blocked, "blocked_by": room.blocked_by, "fitting_nodes": room.fitting,
        })  # fmt: skip
    else:
        text = f"a share of it fits on {count(room.fitting, 'node')} of {len(room.able)} now"
        yield Fact(
            "room",
            text + _gone(room),
            {"fitting_nodes": room.fitting, "able": len(room.able), "away": room.away},
        )
    at_work = sum(one.away in ("", "planned") for one in room.able)
    if at_work < asked.nodes and not room.unseen and not asked.reservation:
        text = f"{at_work or 'none'} of these nodes {'takes' if at_work < 2 else 'take'} jobs now, and it asks for {asked.nodes}"
        yield Fact(
            "away",
            f"{text}: it waits until more of them are back",
            {"at_work": at_work, "asked": asked.nodes},
        )
        return
    if case.queue is None or case.present.hides("jobs"):
        why = "the queue was not told" if case.queue is None else "this site shows users only their own jobs"
        yield Fact("next", f"when running jobs end is not known: {why}", {"at": None})
        return
    yield from _next(asked, room, case.now, about)


def _gpus_free(asked: Asked, room: Room) -> str:
    free = gpus(room.free, asked.gpu_types)
    text = f"{free} of {room.total} free now"
    if room.free and asked.per_node[0] > 1:
        text += f", {room.block} at most on one node"
    if room.blocked:
        whole = room.blocked_by == "other jobs"
        why = "that other jobs are on" if whole else f"without {room.blocked_by} enough for it"
        text += f"; {room.blocked} of them on nodes {why}"
    return text + _gone(room)


def _gone(room: Room) -> str:
    words = {"planned": "kept for the next job", "drained": "drained", "down": "down", "reserved": "reserved"}
    parts = [f"{count} {words[why]}" for why, count in room.away.items()]
    return f" (of its {count(len(room.able), 'node')}: {', '.join(parts)})" if parts else ""


def _next(asked: Asked, room: Room, now: datetime, about: str) -> Iterator[Fact]:
    for one in room.releases[:2]:
        what = f"{one.gpus} more" if asked.gpus else f"{count(one.nodes, 'node')} more"
        who = f"job {one.job_id} ({printable(one.user)})" if one.user else f"job {one.job_id}"
        text = f"{what} at {time_of_day(one.at, now)}, when {who} reaches its time limit, or earlier"
        if one.at <= now:
            text = f"{what} any moment: {who} is past its time limit"
        yield Fact(
            "next",
            text,
            {"at": one.at, "job_id": one.job_id, "user": one.user, "gpus": one.gpus, "nodes": one.nodes},
        )
    if room.enough is not None:
        text = f"room for all of it at {time_of_day(room.enough, now)} at the latest, where the jobs ahead leave it"
        yield Fact("enough", text, {"at": room.enough})
    elif room.fitting >= asked.nodes and not room.releases:
        yield Fact("enough", _ROOM_NOW.get(about, "there is room for it now, apart from that"), {"at": now})
