"""Where a job would fit: what is free on its nodes, when there is more, who is ahead, which other shape would start sooner."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.amounts import count, size_text, time_of_day
from slurmgpu.jobs.view import about, word_of
from slurmgpu.jobs.why.answer import Case, Fact, Shape, as_asked, gpu_option, gpus, listed
from slurmgpu.models.run import JobStatus
from slurmgpu.planning.nodes import has_features
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from slurmgpu.slurm import NodeNow, PartitionNow, Present, QueuedJob

__all__ = [
    "MOST_ASKED", "Ahead", "Release", "Room", "ahead_of", "elsewhere", "queue_fact", "room_facts", "room_for", "shapes_of",
]  # fmt: skip


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
    """The GPUs of all of them; None where Slurm does not tell of one."""
    mine: int = 0
    """Those of the job's own user."""
    tiers: int = 0
    """Those in other partitions with the same nodes, and a higher PriorityTier."""
    out: int = 0
    """Those that stand before it, and are held back by something else than nodes."""
    waiting: int = 0
    """All that wait in the job's partitions, the job itself included."""


def ahead_of(
    asked: QueuedJob, user: str | None, queue: Sequence[QueuedJob], partitions: Mapping[str, PartitionNow]
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
        waiting += job.array_tasks if here else 0
        priority = job.priority or 0
        top = max((tiers.get(name, 0) for name in theirs), default=0)
        if job.number == asked.number or not priority:
            continue
        if whole and job.shown.startswith(whole):
            continue  # another component of the same job: they start together
        if (top, priority, -job.number) <= place or (not here and top <= tier):
            continue
        if about(word_of(job.reason)) in _OUT:
            out += job.array_tasks
            continue
        jobs += job.array_tasks
        by_tier += 0 if here else job.array_tasks
        mine += job.array_tasks if job.user == user else 0
        asks = job.gpus
        gpus = None if asks is None or gpus is None else gpus + asks * job.array_tasks
    return Ahead(jobs, gpus, mine, by_tier, out, waiting)


class Release(NamedTuple):
    """A running job that ends, at its time limit at the latest, and what it leaves on the nodes in question."""

    at: datetime
    job_id: str
    user: str | None
    gpus: int
    nodes: int


@dataclass(frozen=True)
class Room:
    """The room on a job's nodes. Counts are of the GPUs that it asks for, or of CPUs where it asks for none."""

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
    """The room on a node, as jobs end."""

    __slots__ = ("cpus", "gpus", "jobs", "memory")

    def __init__(self, node: NodeNow, types: Sequence[str]) -> None:
        self.gpus = sum(map(node.free, types)) if types else node.free()
        self.cpus, self.memory = node.cpus_free, node.memory_free
        self.jobs: int | None = None
        """Number of jobs on it, where whole nodes are asked for."""

    def fits(self, share: tuple[int, int, int]) -> bool:
        gpus, cpus, memory = share
        if self.jobs:
            return False
        return self.gpus >= gpus and self.cpus >= cpus and (self.memory is None or self.memory >= memory)


def room_for(
    asked: QueuedJob,
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
    share, types = asked.per_node, asked.gpu_types
    # A job in a reservation is told of its nodes alone, and may have those.
    able = [replace(one, away="") if asked.reservation and one.away == "reserved" else one for one in able]
    usable = [node for node in able if node.away in ("", "planned")]
    left = {node.name: _Left(node, types) for node in usable}
    if whole_nodes:
        on_node = Counter(host for job in running if not job.waits for host in job.hosts)
        for node in usable:  # one at least, should the queue not be shown
            left[node.name].jobs = max(1 if node.cpus_used else 0, on_node[node.name])
    counted = [sum(node.gpus[one] for one in _types(node, types)) for node in able]
    tight = [one for one in left.values() if one.gpus and not one.fits((0, share[1], share[2]))]
    short = ["CPUs"] if any(one.cpus < share[1] for one in tight) else []
    short += ["memory"] if any(one.memory is not None and one.memory < share[2] for one in tight) else []
    now = Room(
        able=tuple(able),
        never=never,
        unseen=len(hosts) - len(seen),
        away=dict(Counter(node.away for node in able if node.away)),
        total=sum(counted),
        away_gpus=sum(number for node, number in zip(able, counted, strict=True) if node.name not in left),
        free=sum(one.gpus for one in left.values()),
        block=max((one.gpus for one in left.values()), default=0),
        blocked=sum(one.gpus for one in tight),
        blocked_by="other jobs" if any(one.jobs for one in tight) else " or ".join(short),
        fitting=sum(one.fits(share) for one in left.values()),
    )
    # Last: it plays through how the nodes empty.
    releases, enough = _releases(asked, left, running)
    return replace(now, releases=releases, enough=enough)


def _types(node: NodeNow, types: Sequence[str]) -> list[str]:
    return [name for name in node.gpus if not types or name in types]


def _able(asked: QueuedJob, nodes: Sequence[NodeNow]) -> tuple[list[NodeNow], dict[str, int]]:
    """Return the nodes that could run a share of the job if they were empty, and how many could not, and why."""
    why = [_unable(asked, node) for node in nodes]
    able = [node for node, one in zip(nodes, why, strict=True) if not one]
    return able, dict(Counter(filter(None, why)))


def _unable(asked: QueuedJob, node: NodeNow) -> str:
    gpus, cpus, memory = asked.least
    if node.name in asked.excluded_nodes:
        return "excluded by the job"
    if asked.wanted_nodes and node.name not in asked.wanted_nodes and len(asked.wanted_nodes) >= asked.nodes:
        return "not among those that it names"
    if asked.features and has_features(asked.features, node.features) is False:
        return f"without the features {asked.features}"
    types = _types(node, asked.gpu_types)
    if gpus and not types:
        return f"without {' or '.join(asked.gpu_types)}" if asked.gpu_types else "without GPUs"
    if gpus > sum(node.gpus[one] for one in types):
        return f"without {count(gpus, 'GPU')}"
    if cpus > node.cpus:
        return f"without {count(cpus, 'CPU')}"
    if node.memory is not None and memory > node.memory:
        return f"without {size_text(memory << 20)}"
    return ""


def _fits(asked: QueuedJob, left: dict[str, _Left]) -> bool:
    if asked.gpus_per_node is None and asked.gpus:
        # Slurm spreads them as it likes, over as many nodes as it asks for at least.
        held = sorted((one.gpus for one in left.values() if one.fits((0, *asked.per_node[1:]))), reverse=True)
        return len(held) >= asked.nodes and sum(held[: asked.nodes]) >= asked.gpus
    return sum(one.fits(asked.per_node) for one in left.values()) >= asked.nodes


MOST_RELEASES = 3


def _releases(
    asked: QueuedJob, left: dict[str, _Left], running: Sequence[QueuedJob]
) -> tuple[tuple[Release, ...], datetime | None]:
    """Return the first jobs to end that leave what is asked for; and when there is room for all of it."""
    found: list[Release] = []
    if _fits(asked, left):
        return (), None
    ending = [(job.end, job) for job in running if not job.waits and job.end is not None]
    for end, job in sorted(ending, key=lambda one: one[0]):
        hosts = job.hosts
        here, nodes = [left[name] for name in hosts if name in left], len(hosts)
        if not here:
            continue
        types, theirs = asked.gpu_types, job.gpu_types
        counts = not types or not theirs or any(name in theirs for name in types)
        share = (job.gpus or 0 if counts else 0) / nodes
        for one in here:
            one.gpus += round(share)
            one.cpus += round(job.cpus / nodes)
            one.memory = None if one.memory is None else one.memory + round((job.memory or 0) / nodes)
            one.jobs = None if one.jobs is None else max(0, one.jobs - 1)
        if len(found) < MOST_RELEASES and (share or not asked.gpus):
            found.append(Release(end, job.shown, job.user, round(share * len(here)), len(here)))
        if _fits(asked, left):
            return tuple(found), end
    return tuple(found), None


def elsewhere(job: JobStatus, asked: QueuedJob, present: Present) -> Iterator[PartitionNow]:
    """Yield other open partitions with nodes for the job, that allow its time limit and take its account and QOS."""
    nodes = {one.name: one for one in present.nodes or ()}
    for one in (present.partitions or {}).values():
        rules = one.rules
        if one.name in asked.partitions or one.state != "UP" or rules.by_name or rules.groups:
            continue
        if not rules.takes_account(job.account) or not rules.takes_qos(job.qos):
            continue
        most = rules.limits.max_time
        longest = None if most is None else most.seconds
        if longest is not None and (asked.limit is None or asked.limit > longest):
            continue
        if rules.limits.max_nodes is not None and asked.nodes > rules.limits.max_nodes:
            continue
        able, _ = _able(asked, [nodes[host] for host in one.hosts if host in nodes])
        if len([node for node in able if node.away in ("", "planned")]) >= asked.nodes:
            yield one


def queue_fact(found: Ahead, asked: QueuedJob) -> Fact:
    """Return how many jobs are ahead, and of which kind."""
    where, number = listed(asked.partitions) or "the queue", found.jobs
    text = f"no job is ahead of it in {where}"
    if number:
        text = f"{count(number, 'job')} {'is' if number == 1 else 'are'} ahead of it in {where}"
        parts = [f"asking for {gpus(found.gpus)}"] if found.gpus else []
        if found.mine:
            several = f"{found.mine:,} of these jobs {'is' if found.mine == 1 else 'are'} yours"
            parts.append(several if number > 1 else "yours")
        if found.tiers:
            which = "in a partition that comes" if number == 1 else f"{found.tiers:,} in partitions that come"
            parts.append(f"{which} first on these nodes")
        text += f" ({'; '.join(parts)})" if parts else ""
    if found.out:
        text += f"; {found.out:,} more before it cannot start now, whatever is free"
    return Fact("queue", text, found.__dict__ | {"ahead": number})


_ROOM_NOW = {
    "room": "there is room for it now, as far as nodes go: it waits for its turn",
    "soon": "there is room for it now",
}
_AWAY = {"planned": "kept for the next job", "drained": "drained", "down": "down", "reserved": "reserved"}


def room_facts(asked: QueuedJob, room: Room, case: Case, about: str) -> Iterator[Fact]:
    """Yield what is free for the job, and when there is more."""
    able = len(room.able)
    if (able < asked.nodes or room.total < (asked.gpus or 0)) and case.partitions and not room.unseen:
        case.never = True
        some = f"only {count(able, 'node')}" if able else "no node"
        text = f"{some} of its partition could run a share of it, and it asks for {asked.nodes}"
        if able >= asked.nodes:
            text = f"the nodes of its partition have {gpus(room.total, asked.gpu_types)} in all"
        lacking = [
            f"{count(number, 'node')} {'is' if number == 1 else 'are'} {printable(why)}"
            for why, number in room.never.items()
        ]
        figures = {"able": able, "asked": asked.nodes, "lacking": room.never}
        yield Fact("room", "; ".join([text, *lacking[:4]]), figures)
        return
    gone = ", ".join(f"{number} {_AWAY[why]}" for why, number in room.away.items())
    gone = f" (of its {count(able, 'node')}: {gone})" if gone else ""
    if asked.gpus:
        text = f"{gpus(room.free, asked.gpu_types)} of {room.total} free now"
        if room.free and asked.per_node[0] > 1:
            text += f", {room.block} at most on one node"
        if room.blocked:
            taken = room.blocked_by == "other jobs"
            why = "that other jobs are on" if taken else f"without {room.blocked_by} enough for it"
            text += f"; {room.blocked} of them on nodes {why}"
        yield Fact("room", text + gone, {
            "free": room.free, "block": room.block, "total": room.total, "away_gpus": room.away_gpus, "away": room.away,
            "blocked": room.blocked, "blocked_by": room.blocked_by, "fitting_nodes": room.fitting,
        })  # fmt: skip
    else:
        text = f"a share of it fits on {count(room.fitting, 'node')} of {able} now{gone}"
        yield Fact("room", text, {"fitting_nodes": room.fitting, "able": able, "away": room.away})
    at_work = sum(one.away in ("", "planned") for one in room.able)
    if at_work < asked.nodes and not room.unseen and not asked.reservation:
        text = f"{at_work or 'none'} of these nodes {'takes' if at_work < 2 else 'take'} jobs now, and it asks for {asked.nodes}"
        text += ": it waits until more of them are back"
        yield Fact("away", text, {"at_work": at_work, "asked": asked.nodes})
        return
    if case.queue is None or case.present.hides("jobs"):
        why = "the queue was not told" if case.queue is None else "this site shows users only their own jobs"
        yield Fact("next", f"when running jobs end is not known: {why}", {"at": None})
        return
    for one in room.releases[:2]:
        what = f"{one.gpus} more" if asked.gpus else f"{count(one.nodes, 'node')} more"
        who = f"job {one.job_id} ({printable(one.user)})" if one.user else f"job {one.job_id}"
        text = f"{what} at {time_of_day(one.at, case.now)}, when {who} reaches its time limit, or earlier"
        if one.at <= case.now:
            text = f"{what} any moment: {who} is past its time limit"
        yield Fact("next", text, one._asdict())
    if room.enough is not None:
        text = f"room for all of it at {time_of_day(room.enough, case.now)} at the latest, where the jobs ahead leave it"
        yield Fact("enough", text, {"at": room.enough})
    elif room.fitting >= asked.nodes and not room.releases:
        text = _ROOM_NOW.get(about, "there is room for it now, apart from that")
        yield Fact("enough", text, {"at": case.now})


MOST_ASKED = 6
"""The most shapes that Slurm is asked about: each costs it a call and a job id."""
SCRIPT = "#!/bin/sh\ntrue\n"
_SHORTEST = 15 * 60
# Slurm looks at the queue every half minute or so, and starts jobs by the minute.
_SLACK = timedelta(minutes=2)
_FAR = timedelta(days=365)


def shapes_of(slurm: Slurm, job: JobStatus, present: Present, folder: Path, now: datetime) -> list[Shape]:
    """Return the job as it is, and in shapes that could start sooner, with Slurm's estimate for a new job of each.

    Raises SlurmUnreachable where it does not answer.
    """
    asked = next(iter(present.request_of(job.raw_id)), None) if job.raw_id is not None else None
    if asked is None:
        return []
    found: list[Shape] = []
    case = Case(job, asked, present, "", now)
    first = _first_start(case)
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        script = Path(temporary) / "script.sbatch"
        script.write_text(SCRIPT, encoding="utf-8")
        for options in list(_shapes(job, asked, present))[:MOST_ASKED]:
            words = [*as_asked(asked, job, without={one.partition("=")[0] for one in options}), *options]
            answer = slurm.estimate(script, words, cwd=folder)
            shape = _reshaped(asked, options)
            fits = answer.accepted and shape is not None and first is not None and _fits_now(shape, case)
            free_for = (
                max(0, int((first - now - _SLACK).total_seconds()) // 60 * 60) if fits and first else None
            )
            limit = asked.limit if shape is None else shape.limit
            found.append(
                Shape(options, answer.start, None if answer.accepted else answer.text, limit, free_for)
            )
    return found


def _fits_now(asked: QueuedJob, case: Case) -> bool:
    """Return True if what is free now suffices: `--test-only` does not look there, and backfilling does."""
    nodes, queue = case.present.nodes, case.queue
    if queue is None or nodes is None or case.present.hides("jobs"):
        return False
    whole = asked.exclusive or any(one.rules.whole_nodes for one in case.partitions)
    room = room_for(asked, nodes, case.hosts, queue, whole_nodes=whole)
    return room.fitting >= asked.nodes and not room.releases and room.enough is None


def _first_start(case: Case) -> datetime | None:
    """Return when Slurm means to start the first of the jobs ahead, far from now where there is none; None: not known of each."""
    there = case.present.partitions or {}
    queue = [one for one in case.queue or () if one.waits]
    ahead = [one.start for one in queue if ahead_of(case.asked, None, [one], there).jobs]
    starts = [start for start in ahead if start is not None]
    return None if len(starts) < len(ahead) else min(starts, default=case.now + _FAR)


def _reshaped(asked: QueuedJob, options: tuple[str, ...]) -> QueuedJob | None:
    """Return what the job asks for in another shape; None in another partition."""
    given = dict(one.removeprefix("--").split("=", 1) for one in options)
    if "partition" in given:
        return None
    gpus, cpus, memory = asked.per_node
    if "time" in given and asked.limit:
        return asked.changed(limit=asked.limit // 2 // 60 * 60)
    if "nodes" in given:
        nodes = int(given["nodes"])
        shares = [None if one is None else one * nodes // asked.nodes for one in (asked.gpus, asked.memory)]
        return asked.changed(nodes=nodes, gpus=shares[0], memory=shares[1], cpus=cpus * nodes)
    if "gpus-per-node" in given:
        half = None if asked.memory is None else max(1, memory // 2)
        return asked.changed(gpus=gpus // 2, gpus_per_node=gpus // 2, cpus=max(1, cpus // 2), memory=half)
    return asked


def _shapes(job: JobStatus, asked: QueuedJob, present: Present) -> Iterator[tuple[str, ...]]:
    """Yield the options that differ, the most likely to help first."""
    yield ()
    if asked.limit and asked.limit // 2 >= _SHORTEST:
        hours, minutes = divmod(asked.limit // 2 // 60, 60)
        yield (f"--time={hours:02}:{minutes:02}:00",)
    each = asked.per_node[0]
    if asked.nodes > 1:
        tasks = (asked.tasks or asked.nodes) * (asked.nodes // 2) // asked.nodes
        yield (f"--nodes={asked.nodes // 2}", f"--ntasks={max(1, tasks)}")
    elif each > 1:
        half, cpus = gpu_option(asked, each // 2), asked.cpus // (asked.tasks or 1) // 2
        memory = [f"--mem={max(1, asked.per_node[2] // 2)}M"] if asked.memory else []
        yield (f"--gpus-per-node={half}", f"--cpus-per-task={max(1, cpus)}", *memory)
    for one in elsewhere(job, asked, present):
        yield (f"--partition={one.name}",)
