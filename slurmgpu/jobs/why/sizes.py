"""What a job asks for against its partitions and their nodes, and which other shape of it would start sooner."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.amounts import count, memory_text, span, time_of_day
from slurmgpu.jobs.why.answer import Case, Fact, Mend, Shape, Told, as_asked, gpu_option, listed
from slurmgpu.jobs.why.room import ahead_of, elsewhere, room_for
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, Present

__all__ = ["MOST_ASKED", "nodes", "partition", "request", "shapes_of", "size", "time"]


def partition(case: Case) -> Told:
    """PartitionDown, PartitionInactive: which, and where else the job could go."""
    for one in case.partitions:
        if one.state != "UP":
            yield Fact("partition", f"partition {one.name} is {one.state}: it starts no jobs until the site opens it",
                       {"partition": one.name, "state": one.state})  # fmt: skip
    others = [one.name for one in elsewhere(case.job, case.asked, case.present)]
    if others:
        yield Mend(
            f"or move it to a partition that is open: {listed(others)}", case.change("Partition", others[0])
        )


def time(case: Case) -> Told:
    """PartitionTimeLimit: how long it may be, and where longer."""
    limit = case.asked.limit
    limits = [(one.rules.limits.max_time, one) for one in case.partitions]
    for most, one in limits:
        if most is None or most.seconds is None:
            continue
        asks = "no limit" if limit is None else span(limit)
        yield Fact("time", f"asks for {asks}; partition {one.name} allows {span(most.seconds)}",
                   {"partition": one.name, "asked": limit, "limit": most.seconds})  # fmt: skip
        yield Mend("ask for as long as the partition allows", case.change("TimeLimit", str(most)))
    longer = [one.name for one in elsewhere(case.job, case.asked, case.present)]
    if longer:
        yield Mend(
            f"or move it to a partition that allows it: {listed(longer)}", case.change("Partition", longer[0])
        )


def size(case: Case) -> Told:
    """More, or less, than the partition allows a job."""
    asked = case.asked
    for one in case.partitions:
        limits = one.rules.limits
        most = min((count for count in (limits.max_nodes, len(one.hosts)) if count is not None), default=None)
        if most is not None and asked.nodes > most:
            what = (
                f"has {count(most, 'node')}"
                if most == len(one.hosts)
                else f"allows {count(most, 'node')} a job"
            )
            yield Fact("nodes", f"asks for {count(asked.nodes, 'node')}; partition {one.name} {what}",
                       {"partition": one.name, "asked": asked.nodes, "limit": most})  # fmt: skip
            yield Mend("ask for fewer nodes", case.change("NumNodes", f"{most}-{most}"))
        if limits.min_nodes is not None and asked.nodes < limits.min_nodes:
            yield Fact("nodes", f"asks for {count(asked.nodes, 'node')}; partition {one.name} wants {limits.min_nodes} at least",
                       {"partition": one.name, "asked": asked.nodes, "least": limits.min_nodes})  # fmt: skip
            yield Mend(
                "ask for more nodes", case.change("NumNodes", f"{limits.min_nodes}-{limits.min_nodes}")
            )
        cpus = limits.max_cpus_per_node
        if cpus is not None and asked.per_node[1] > cpus:
            yield Fact("cpus", f"asks for {count(asked.per_node[1], 'CPU')} on a node; partition {one.name} allows {cpus}",
                       {"partition": one.name, "asked": asked.per_node[1], "limit": cpus})  # fmt: skip
        memory = limits.max_memory
        if memory is not None and asked.per_node[2] > memory.mib:
            yield Fact("memory", f"asks for {memory_text(asked.per_node[2])} on a node; partition {one.name} allows "
                       f"{memory_text(memory.mib)}",
                       {"partition": one.name, "asked": asked.per_node[2], "limit": memory.mib})  # fmt: skip
            yield Mend("ask for less memory", case.change("MinMemoryNode", str(memory.mib)))
    yield Mend("or cancel it, and submit it in a shape that fits", case.again("--nodes=N"))


def request(case: Case) -> Told:
    """BadConstraints: nothing that the partition has is what the job asks for; the room says for want of what."""
    if case.asked.features:
        have = sorted({name for node in case.present.nodes or () for name in node.features})
        yield Fact("features", f"asks for {printable(case.asked.features)}; nodes have {listed(have, 8) or 'no features'}",
                   {"asked": case.asked.features, "there": have})  # fmt: skip
        yield Mend("drop the constraint", case.change("Features", ""))
    yield Mend("see what there is", "slurmgpu cluster gpus")


def nodes(case: Case) -> Told:
    """ReqNodeNotAvail: nodes that it names, or all that it could use, are down, drained or reserved."""
    asked = case.asked
    there = {one.name: one for one in case.present.nodes or ()}
    for name in asked.wanted_nodes[:8]:
        node = there.get(name)
        if node is not None and node.away:
            yield Fact("node", f"it asks for node {name}, which is {_state(node.away)} ({printable(node.state)})",
                       {"node": name, "state": node.state})  # fmt: skip
    # Where too few of its nodes are up, a shorter job waits as long.
    up = sum(1 for name in case.hosts if name in there and there[name].away in ("", "planned"))
    coming = [
        one
        for one in (case.present.reservations or {}).values()
        if one.start
        and one.end
        and one.end > case.now
        and any(one.hosts & mine.hosts for mine in case.partitions)
    ]
    for one in sorted(coming, key=lambda one: one.start or case.now)[:2]:
        assert one.start is not None
        assert one.end is not None
        kind = "maintenance" if one.maintenance else "reservation"
        text = (
            f"{kind} {printable(one.name)} takes {count(len(one.hosts), 'node')} from {time_of_day(one.start, case.now)} "
            f"to {time_of_day(one.end, case.now)}"
        )
        yield Fact("reservation", text, {"reservation": one.name, "begins": one.start, "ends": one.end})
        left = (one.start - case.now).total_seconds()
        if left > 60 and up >= asked.nodes and (asked.limit is None or asked.limit > left):
            minutes = int(left // 60) - 1
            yield Mend(
                f"a job that ends before it may start now: {span(minutes * 60)}",
                case.change("TimeLimit", str(minutes)),
            )
    if asked.wanted_nodes:
        yield Mend("let Slurm choose the nodes", case.change("ReqNodeList", ""))


def _state(away: str) -> str:
    return {"reserved": "reserved", "planned": "kept for another job"}.get(away, away)


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
    asked = next(iter(present.asked(job.raw_id)), None) if job.raw_id is not None else None
    if asked is None:
        return []
    found: list[Shape] = []
    gaps = _Gaps(Case(job, asked, present, "", now))
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        script = Path(temporary) / "script.sbatch"
        script.write_text(SCRIPT, encoding="utf-8")
        for options in list(_shapes(job, asked, present))[:MOST_ASKED]:
            words = [*as_asked(asked, job, without={one.partition("=")[0] for one in options}), *options]
            told = slurm.estimate(script, words, cwd=folder)
            refused = None if told.accepted else told.text
            free_for = None if refused else gaps.within(options)
            found.append(Shape(options, told.start, refused, _limit(asked, options), free_for))
    return found


class _Gaps:
    """What is free until the jobs ahead are to start: `--test-only` does not look there, and backfilling does."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def within(self, options: tuple[str, ...]) -> int | None:
        """Return the seconds for which the job, in another shape, may have what is free now; None: it does not fit, or who knows.

        Only in the partitions that it is in.
        """
        asked = _reshaped(self.case.asked, options)
        queue, nodes, first = self.case.queue, self.case.present.nodes, self._first
        if (
            asked is None
            or queue is None
            or nodes is None
            or first is None
            or self.case.present.hides("jobs")
        ):
            return None
        whole = asked.exclusive or any(one.rules.whole_nodes for one in self.case.partitions)
        room = room_for(asked, nodes, self.case.hosts, queue, whole_nodes=whole)
        if room.fitting < asked.nodes or room.releases or room.enough is not None:
            return None
        return max(0, int((first - self.case.now - _SLACK).total_seconds()) // 60 * 60)

    @cached_property
    def _first(self) -> datetime | None:
        """When Slurm means to start the first of the jobs ahead, far from now where there is none; None: not known of each."""
        case, there = self.case, self.case.present.partitions or {}
        queue = [one for one in case.queue or () if one.waits]
        ahead = [one.start for one in queue if ahead_of(case.asked, None, [one], there).jobs]
        starts = [start for start in ahead if start is not None]
        if len(starts) < len(ahead):
            return None
        return min(starts, default=case.now + _FAR)


def _limit(asked: Asked, options: tuple[str, ...]) -> int | None:
    """Return the time limit of a shape, in seconds."""
    halved = any(one.startswith("--time=") for one in options)
    return asked.limit // 2 // 60 * 60 if halved and asked.limit else asked.limit


def _reshaped(asked: Asked, options: tuple[str, ...]) -> Asked | None:
    """Return what the job asks for in another shape; None in another partition."""
    given = dict(one.removeprefix("--").split("=", 1) for one in options)
    if "partition" in given:
        return None
    gpus, cpus, memory = asked.per_node
    if "nodes" in given:
        nodes = int(given["nodes"])
        share = [
            None if count is None else count * nodes // asked.nodes for count in (asked.gpus, asked.memory)
        ]
        return replace(asked, nodes=nodes, gpus=share[0], memory=share[1], cpus=cpus * nodes)
    if "gpus-per-node" in given:
        gpus //= 2
        half = None if asked.memory is None else max(1, memory // 2)
        return replace(asked, gpus=gpus, gpus_per_node=gpus, cpus=max(1, cpus // 2), memory=half)
    return asked


def _shapes(job: JobStatus, asked: Asked, present: Present) -> Iterator[tuple[str, ...]]:
    """Yield the options that differ, the most likely to help first."""
    yield ()
    if asked.limit and asked.limit // 2 >= _SHORTEST:
        yield (f"--time={_time(asked.limit // 2)}",)
    each = asked.per_node[0]
    if asked.nodes > 1:
        yield (f"--nodes={asked.nodes // 2}", *_half_tasks(asked))
    elif each > 1:
        half = gpu_option(asked, each // 2)
        yield (f"--gpus-per-node={half}", f"--cpus-per-task={max(1, asked.cpus // (asked.tasks or 1) // 2)}",
               *([f"--mem={max(1, asked.per_node[2] // 2)}M"] if asked.memory else []))  # fmt: skip
    for one in elsewhere(job, asked, present):
        yield (f"--partition={one.name}",)


def _half_tasks(asked: Asked) -> tuple[str, ...]:
    return (f"--ntasks={max(1, (asked.tasks or asked.nodes) * (asked.nodes // 2) // asked.nodes)}",)


def _time(seconds: int) -> str:
    hours, rest = divmod(seconds // 60, 60)
    return f"{hours:02}:{rest:02}:00"
