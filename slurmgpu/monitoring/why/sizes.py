"""What a job asks for, held against its partitions and their nodes: closed, too long, too large, not there."""

from __future__ import annotations

from slurmgpu.monitoring.why.answer import Fact, Mend
from slurmgpu.monitoring.why.case import Case, Told
from slurmgpu.monitoring.why.room import elsewhere
from slurmgpu.monitoring.why.words import amount, clock, gibibytes, listed, span
from slurmgpu.printable import printable

__all__ = ["nodes", "partition", "request", "size", "time"]


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
                f"has {amount(most, 'node')}"
                if most == len(one.hosts)
                else f"allows {amount(most, 'node')} a job"
            )
            yield Fact("nodes", f"asks for {amount(asked.nodes, 'node')}; partition {one.name} {what}",
                       {"partition": one.name, "asked": asked.nodes, "limit": most})  # fmt: skip
            yield Mend("ask for fewer nodes", case.change("NumNodes", f"{most}-{most}"))
        if limits.min_nodes is not None and asked.nodes < limits.min_nodes:
            yield Fact("nodes", f"asks for {amount(asked.nodes, 'node')}; partition {one.name} wants {limits.min_nodes} at least",
                       {"partition": one.name, "asked": asked.nodes, "least": limits.min_nodes})  # fmt: skip
            yield Mend(
                "ask for more nodes", case.change("NumNodes", f"{limits.min_nodes}-{limits.min_nodes}")
            )
        cpus = limits.max_cpus_per_node
        if cpus is not None and asked.per_node[1] > cpus:
            yield Fact("cpus", f"asks for {amount(asked.per_node[1], 'CPU')} on a node; partition {one.name} allows {cpus}",
                       {"partition": one.name, "asked": asked.per_node[1], "limit": cpus})  # fmt: skip
        memory = limits.max_memory
        if memory is not None and asked.per_node[2] > memory.mib:
            yield Fact("memory", f"asks for {gibibytes(asked.per_node[2])} on a node; partition {one.name} allows "
                       f"{gibibytes(memory.mib)}",
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
            f"{kind} {printable(one.name)} takes {amount(len(one.hosts), 'node')} from {clock(one.start, case.now)} "
            f"to {clock(one.end, case.now)}"
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
