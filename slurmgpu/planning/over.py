"""What a request uses, and the limits that it is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, NodeGroup
from slurmgpu.models.limits import Limits, Totals
from slurmgpu.models.units import Duration, Memory
from slurmgpu.planning.ask import Ask, Clause
from slurmgpu.planning.gpus import gpu_type_matches
from slurmgpu.planning.request import count

__all__ = ["Used", "over_limits", "used_of"]


class Used(NamedTuple):
    """What limits count: whole nodes count whole."""

    gpus: int
    cpus_per_node: int
    memory_per_node: int | None
    """As a partition counts it: of all of a node, the smallest that would do."""
    memory_accounted: int | None
    """As accounting counts it: of all of a node, the largest of the partition (seen on 22.05)."""


def used_of(cluster: Cluster, ask: Ask, fitting: list[NodeGroup]) -> Used:
    """What limits count of a request on the nodes that fit it."""
    gpus, cpus = ask.gpus_per_node, ask.cpus_per_node
    partition = cluster.partitions.get(ask.partition or "")
    whole = ask.whole or bool(partition and partition.whole_nodes)
    if whole:
        # Slurm takes a node first and counts it whole then: any of those that fit must be within the limits.
        cpus = max([cpus, *(group.cpus or 0 for group in fitting)])
        gpus = max([gpus, *(group.gpu_count or 0 for group in fitting)])
    elif fitting:
        threads = min(group.threads_per_core or 1 for group in fitting)
        cpus = -(-cpus // threads) * threads
    memory = accounted = ask.memory_per_node
    if memory == 0:  # all of a node's: Slurm takes one whose memory the limits allow
        everywhere = partition.nodes if partition else ()
        accounted = max((group.memory.mib for group in everywhere if group.memory), default=0)
        memory = min((group.memory.mib for group in fitting if group.memory), default=0)
    per_cpu = partition.limits.max_memory_per_cpu if partition else None
    if per_cpu is not None and ask.memory_per_node:  # Slurm gives further CPUs for memory over this
        cpus = max(cpus, -(-ask.memory_per_node // per_cpu.mib))
    return Used(ask.nodes * gpus, cpus, memory, accounted)


def over_limits(cluster: Cluster, limits: Limits, ask: Ask, used: Used) -> Iterator[Clause]:
    """The limits that a request is over, or under."""
    yield from _over_time(limits, ask)
    if limits.min_nodes is not None and ask.nodes < limits.min_nodes:
        yield Clause(
            "nodes", f"wants at least {count(limits.min_nodes, 'node')} a job, {ask.nodes} are asked for"
        )
    if limits.max_nodes is not None and ask.nodes > limits.max_nodes:
        yield Clause(
            "nodes", f"allows at most {count(limits.max_nodes, 'node')} a job, {ask.nodes} are needed"
        )
    asked = ask.nodes * ask.gpus_per_node
    if limits.min_gpus is not None and asked < limits.min_gpus:
        yield Clause("gpus", f"wants at least {count(limits.min_gpus, 'GPU')} a job, {asked} are asked for")
    cpus = ask.nodes * used.cpus_per_node
    memory = None if used.memory_accounted is None else ask.nodes * used.memory_accounted
    per_node = Totals.model_construct(
        gpus=limits.max_gpus_per_node, cpus=limits.max_cpus_per_node, memory=limits.max_memory
    )
    job = Totals.model_construct(
        gpus=limits.max_gpus,
        gpus_by_type=limits.max_gpus_by_type,
        cpus=limits.max_cpus,
        memory=limits.max_memory_in_all,
    )
    on_a_node = (used.gpus // max(1, ask.nodes), used.cpus_per_node, used.memory_per_node, 1)
    in_all = (used.gpus, cpus, memory, ask.nodes)
    for totals, amounts, what in (
        (per_node, on_a_node, "a node"),
        (job, in_all, "a job"),
        (limits.per_user, in_all, "a user"),
        (limits.in_all, in_all, "in all"),
    ):
        yield from _over_totals(cluster, totals, amounts, ask, what)


def _over_time(limits: Limits, ask: Ask) -> Iterator[Clause]:
    time = ask.time or limits.default_time
    if time is None:
        return
    by_nodes = next((row for row in limits.max_time_by_nodes if ask.nodes <= row.nodes), None)
    if by_nodes is not None and time.exceeds(by_nodes.max_time):
        yield Clause(
            "time",
            f"allows at most {by_nodes.max_time} on up to {count(by_nodes.nodes, 'node')}, {time} is asked for",
        )
    elif limits.max_time is not None and ask.time is not None and time.exceeds(limits.max_time):
        yield Clause("time", f"allows at most {limits.max_time}, {time} is asked for")
    most = limits.max_node_time
    if most is not None and most.seconds is not None:
        used = Duration(None if time.seconds is None else time.seconds * ask.nodes)
        if used.exceeds(most):
            yield Clause(
                "time", f"allows {most} of nodes times time, {count(ask.nodes, 'node')} x {time} are {used}"
            )


def _over_totals(
    cluster: Cluster, totals: Totals, amounts: tuple[int, int, int | None, int], ask: Ask, what: str
) -> Iterator[Clause]:
    gpus, cpus, memory, nodes = amounts
    if totals.gpus is not None and gpus > totals.gpus:
        yield Clause("gpus", f"allows at most {count(totals.gpus, 'GPU')} {what}, {gpus} are asked for")
    for gpu_type, most in (totals.gpus_by_type or {}).items():
        same = ask.gpu_type is not None and (
            ask.gpu_type == gpu_type or gpu_type_matches(cluster, gpu_type, ask.gpu_type)
        )
        if same and gpus > most:
            yield Clause(
                "gpus", f"allows at most {count(most, f'{gpu_type} GPU')} {what}, {gpus} are asked for"
            )
    if totals.cpus is not None and cpus > totals.cpus:
        detail = f" ({ask.detail})" if ask.detail else ""
        yield Clause(
            "cpus", f"allows at most {count(totals.cpus, 'CPU')} {what}, {cpus} are asked for{detail}"
        )
    if totals.memory is not None and memory is not None and memory > totals.memory.mib:
        yield Clause(
            "memory",
            f"allows at most {totals.memory.readable} {what}, {Memory(memory).readable} are asked for",
        )
    if totals.nodes is not None and nodes > totals.nodes:
        yield Clause("nodes", f"allows at most {count(totals.nodes, 'node')} {what}, {nodes} are asked for")
    if totals.jobs == 0:
        yield Clause("qos", "allows no job to run")
