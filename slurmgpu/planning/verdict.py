"""Would Slurm start this? A request in numbers against everything that is known of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.models.limits import Limits, Totals
from slurmgpu.models.units import Duration, Gres, Memory
from slurmgpu.planning.features import matches
from slurmgpu.planning.gpus import gpu_type_matches, memory_of, names_of
from slurmgpu.planning.request import count
from slurmgpu.planning.rules import associations_for, enforced, limits_for

__all__ = ["Ask", "Problem", "problems", "suits"]


class Ask(NamedTuple):
    """What Slurm is asked for, in numbers per node."""

    partition: str | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_type: str | None = None
    """By the profile's name for it, or by its gres type."""
    gpu_memory: Memory | None = None
    gres: tuple[Gres, ...] = ()
    constraint: str | None = None
    cpus_per_node: int = 1
    """CPUs on each node, at least one for each task there."""
    memory_per_node: int | None = None
    """MiB on each node; 0: all of it; None: not asked for."""
    time: Duration | None = None
    qos: str | None = None
    account: str | None = None
    whole: bool = False
    """Whether the nodes are given whole, whatever is asked of them."""
    detail: str = ""
    """How the CPUs came about, for messages."""


class Problem(NamedTuple):
    """Why a request is refused, or would wait for ever: who says so, and what."""

    subject: str
    text: str
    """A clause whose subject is ``subject``."""

    def __str__(self) -> str:
        return f"{self.subject} {self.text}"


def problems(cluster: Cluster, ask: Ask) -> list[Problem]:
    """Everything that keeps a request from ever starting on an empty cluster; none: Slurm would start it.

    What is not known of the cluster is not held against the request.
    """
    found = list(_access(cluster, ask))
    partition = cluster.partitions.get(ask.partition or "")
    fitting: list[NodeGroup] = []
    if partition is not None:
        subject = f"partition {ask.partition!r}"
        fitting, misfits = _fitting(cluster, partition, ask)
        found += [Problem(subject, text) for text in (*_of_partition(partition, ask), *misfits)]
    used = _used(cluster, ask, fitting)
    for subject, limits in limits_for(cluster, ask.partition, _effective_qos(cluster, ask), ask.account):
        found += [Problem(subject, text) for text in _over(cluster, limits, ask, used)]
    return list(dict.fromkeys(found))


def _effective_qos(cluster: Cluster, ask: Ask) -> str | None:
    if ask.qos is not None:
        return ask.qos
    rows = associations_for(cluster, ask.account, ask.partition)
    return rows[0].default_qos if rows else None


# Who may use it


def _access(cluster: Cluster, ask: Ask) -> Iterator[Problem]:
    partition = cluster.partitions.get(ask.partition or "", Partition.model_construct())
    subject = f"partition {ask.partition!r}"
    yield from _account(cluster, ask, partition, subject)
    qos = _effective_qos(cluster, ask)
    if qos is None:
        return
    if ask.qos is not None and cluster.qos and qos not in cluster.qos:
        yield Problem(f"cluster {cluster.name!r}", f"has no QOS {qos!r}; it has {', '.join(cluster.qos)}")
    elif qos in cluster.qos and cluster.qos[qos].partitions:
        legal = cluster.qos[qos].partitions
        if ask.partition is not None and ask.partition not in legal:
            yield Problem(f"QOS {qos!r}", f"is legal only in {_list('partition', legal)}")
    if partition.qos and qos not in partition.qos:
        yield Problem(subject, f"takes only QOS {', '.join(partition.qos)}, not {qos!r}")
    elif qos in partition.denied_qos:
        yield Problem(subject, f"does not take QOS {qos!r}")


def _account(cluster: Cluster, ask: Ask, partition: Partition, subject: str) -> Iterator[Problem]:
    account = ask.account or cluster.default_account
    if account is not None and partition.accounts and account not in partition.accounts:
        yield Problem(subject, f"takes only accounts {', '.join(partition.accounts)}, not {account!r}")
    elif account in partition.denied_accounts:
        yield Problem(subject, f"does not take account {account!r}")
    if not cluster.associations or not enforced(cluster, "associations"):
        return
    names = sorted({row.account for row in cluster.associations})
    if ask.account is not None and ask.account not in names:
        yield Problem(f"account {ask.account!r}", f"is none of yours: {', '.join(names)}")
        return
    rows = associations_for(cluster, ask.account, ask.partition)
    if not rows:
        own = sorted({row.partition or "" for row in cluster.associations if row.account == account})
        yield Problem(f"account {account!r}", f"is for {_list('partition', own)} only")
    elif ask.qos is not None and enforced(cluster, "qos"):
        legal = sorted({qos for row in rows for qos in row.qos})
        if legal and ask.qos not in legal:
            yield Problem(
                f"account {account!r}", f"may not use QOS {ask.qos!r}; it may use {', '.join(legal)}"
            )


def _list(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


# What the nodes have


def suits(cluster: Cluster, kind: NodeGroup, ask: Ask) -> str | None:
    """Why nodes of a kind cannot hold a node's part of a request; None: they can, as far as is known."""
    wanted = ask.gpu_type if ask.gpus_per_node else None
    if wanted is not None and not gpu_type_matches(cluster, wanted, kind.gpu_type):
        return f"has no {wanted}"
    if ask.gpus_per_node and kind.gpu_count == 0:
        return "has no GPUs"
    if ask.constraint and matches(cluster, ask.constraint, kind) is False:
        return f"has no such nodes with {ask.constraint}"
    if ask.gpu_memory is not None and ask.gpus_per_node:
        has = memory_of(cluster, kind)
        if has is None or has < ask.gpu_memory.mib:
            text = Memory(has).readable if has else "unknown memory"
            return f"has GPUs of {text}, {ask.gpu_memory.readable} are asked for"
    if kind.gpu_count is not None and ask.gpus_per_node > kind.gpu_count:
        return f"has {count(kind.gpu_count, 'GPU')} a node, {ask.gpus_per_node} are asked for on each"
    if kind.whole_across_nodes and ask.nodes > 1 and kind.gpu_count not in (None, ask.gpus_per_node):
        return f"gives jobs over several nodes all {kind.gpu_count} GPUs of each, {ask.gpus_per_node} are asked for"
    return _too_many_cpus(kind, ask) or _too_much_memory(kind, ask) or _other_gres(kind, ask)


def _too_many_cpus(kind: NodeGroup, ask: Ask) -> str | None:
    detail = f" ({ask.detail})" if ask.detail else ""
    if kind.cpus is not None and ask.cpus_per_node > kind.cpus:
        return f"has {count(kind.cpus, 'CPU')} a node, {ask.cpus_per_node} are asked for{detail}"
    cap = kind.max_cpus_per_gpu
    if cap is not None and ask.gpus_per_node and ask.cpus_per_node > cap * ask.gpus_per_node:
        kinds = f"{kind.gpu_type} GPU" if kind.gpu_type else "GPU"
        return (
            f"allows {cap} CPUs for each {kinds}: {cap * ask.gpus_per_node} for {ask.gpus_per_node}, "
            f"{ask.cpus_per_node} are asked for{detail}"
        )
    return None


def _too_much_memory(kind: NodeGroup, ask: Ask) -> str | None:
    if not ask.memory_per_node:
        return None
    asked = Memory(ask.memory_per_node)
    if kind.memory is not None and kind.memory < asked:
        return f"has {kind.memory.readable} of memory a node, {asked.readable} are asked for"
    cap = kind.max_memory_per_gpu
    if cap is not None and ask.gpus_per_node and cap.mib * ask.gpus_per_node < asked.mib:
        allowed = Memory(cap.mib * ask.gpus_per_node).readable
        return f"allows {cap.readable} for each GPU: {allowed} for {ask.gpus_per_node}, {asked.readable} are asked for"
    return None


def _other_gres(kind: NodeGroup, ask: Ask) -> str | None:
    for gres in ask.gres:
        has = kind.shards if gres.name == "shard" else kind.gres.get(gres.name)
        wanted = _whole(gres.count)
        if has is not None and wanted is not None and wanted > has:
            return f"has {has} {gres.name} a node, {wanted} are asked for"
    return None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def _fitting(cluster: Cluster, partition: Partition, ask: Ask) -> tuple[list[NodeGroup], list[str]]:
    """The nodes that can hold it, and why there are not enough of them."""
    fitting: list[NodeGroup] = []
    misfits: dict[str, None] = {}
    for group in partition.nodes:
        # GPUs of any type count together on a node with several; those of one type alone.
        whole = group.model_copy(update={"gpus": group.gpu_count}) if isinstance(group.gpus, dict) else group
        reasons = [suits(cluster, kind, ask) for kind in (group.kinds if ask.gpu_type else (whole,))]
        if None in reasons:
            fitting.append(group)
        else:
            misfits.update(dict.fromkeys(reason for reason in reasons if reason))
    if not partition.nodes:
        return [], []
    if not fitting:
        no_type = f"has no {ask.gpu_type}"
        if no_type in misfits:
            if len(misfits) == 1:
                types = names_of(partition.kinds)
                return [], [f"{no_type} (its types: {', '.join(types) or 'none'})"]
            misfits.pop(no_type)
        return [], list(misfits)
    counts = [group.count for group in fitting]
    known = [number for number in counts if number is not None]
    if len(known) == len(counts) and sum(known) < ask.nodes:
        return fitting, [f"has {sum(known)} such nodes, {ask.nodes} are needed"]
    return fitting, []


def _of_partition(partition: Partition, ask: Ask) -> Iterator[str]:
    if partition.requires_gpu and not ask.gpus_per_node:
        yield "refuses jobs without a GPU"
    if partition.state != "up":
        waits = "jobs wait there" if partition.state == "down" else "it takes no jobs"
        yield f"is {partition.state}: {waits}"


# What limits allow


class _Used(NamedTuple):
    """What limits count: whole nodes count whole."""

    gpus: int
    cpus_per_node: int
    memory_per_node: int | None


def _used(cluster: Cluster, ask: Ask, fitting: list[NodeGroup]) -> _Used:
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
    memory = ask.memory_per_node
    if memory == 0:  # all of a node's: Slurm takes one whose memory the limits allow
        memory = min((group.memory.mib for group in fitting if group.memory), default=0)
    per_cpu = partition.limits.max_memory_per_cpu if partition else None
    if per_cpu is not None and ask.memory_per_node:  # Slurm gives further CPUs for memory over this
        cpus = max(cpus, -(-ask.memory_per_node // per_cpu.mib))
    return _Used(ask.nodes * gpus, cpus, memory)


def _over(cluster: Cluster, limits: Limits, ask: Ask, used: _Used) -> Iterator[str]:
    yield from _over_time(limits, ask)
    if limits.min_nodes is not None and ask.nodes < limits.min_nodes:
        yield f"wants at least {count(limits.min_nodes, 'node')} a job, {ask.nodes} are asked for"
    if limits.max_nodes is not None and ask.nodes > limits.max_nodes:
        yield f"allows at most {count(limits.max_nodes, 'node')} a job, {ask.nodes} are needed"
    if limits.min_gpus is not None and used.gpus < limits.min_gpus:
        yield f"wants at least {count(limits.min_gpus, 'GPU')} a job, {used.gpus} are asked for"
    cpus = ask.nodes * used.cpus_per_node
    memory = None if used.memory_per_node is None else ask.nodes * used.memory_per_node
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


def _over_time(limits: Limits, ask: Ask) -> Iterator[str]:
    time = ask.time or limits.default_time
    if time is None:
        return
    by_nodes = next((row for row in limits.max_time_by_nodes if ask.nodes <= row.nodes), None)
    if by_nodes is not None and time.exceeds(by_nodes.max_time):
        yield f"allows at most {by_nodes.max_time} on up to {count(by_nodes.nodes, 'node')}, {time} is asked for"
    elif limits.max_time is not None and ask.time is not None and time.exceeds(limits.max_time):
        yield f"allows at most {limits.max_time}, {time} is asked for"
    most = limits.max_node_time
    if most is not None and most.seconds is not None:
        used = Duration(None if time.seconds is None else time.seconds * ask.nodes)
        if used.exceeds(most):
            yield f"allows {most} of nodes times time, {count(ask.nodes, 'node')} x {time} are {used}"


def _over_totals(
    cluster: Cluster, totals: Totals, amounts: tuple[int, int, int | None, int], ask: Ask, what: str
) -> Iterator[str]:
    gpus, cpus, memory, nodes = amounts
    if totals.gpus is not None and gpus > totals.gpus:
        yield f"allows at most {count(totals.gpus, 'GPU')} {what}, {gpus} are asked for"
    for gpu_type, most in (totals.gpus_by_type or {}).items():
        same = ask.gpu_type is not None and (
            ask.gpu_type == gpu_type or gpu_type_matches(cluster, gpu_type, ask.gpu_type)
        )
        if same and gpus > most:
            yield f"allows at most {count(most, f'{gpu_type} GPU')} {what}, {gpus} are asked for"
    if totals.cpus is not None and cpus > totals.cpus:
        detail = f" ({ask.detail})" if ask.detail else ""
        yield f"allows at most {count(totals.cpus, 'CPU')} {what}, {cpus} are asked for{detail}"
    if totals.memory is not None and memory is not None and memory > totals.memory.mib:
        yield f"allows at most {totals.memory.readable} {what}, {Memory(memory).readable} are asked for"
    if totals.nodes is not None and nodes > totals.nodes:
        yield f"allows at most {count(totals.nodes, 'node')} {what}, {nodes} are asked for"
    if totals.jobs == 0:
        yield "allows no job to run"
