"""Would Slurm start this? A request in numbers against everything that is known of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.models.cluster import Association, Cluster, Limits, NodeGroup, Partition, Totals
from slurmgpu.models.units import Duration, Memory
from slurmgpu.planning.nodes import fitting_nodes, gpu_type_matches, release_of
from slurmgpu.planning.request import SHARED, Ask, Clause, Problem

__all__ = [
    "Rule",
    "Used",
    "associations_for",
    "effective_qos",
    "enforced",
    "limits_for",
    "over_limits",
    "problems",
    "problems_together",
    "used_of",
]


class Rule(NamedTuple):
    """Limits, and whose they are."""

    subject: str
    limits: Limits


def enforced(cluster: Cluster, what: str) -> bool:
    """Return True if accounting enforces this (AccountingStorageEnforce); taken as enforced where nothing is known of it."""
    if cluster.slurm.release is None and not cluster.slurm.enforces:
        return True
    names = set(cluster.slurm.enforces)
    implied = {"associations": {"associations", "limits", "qos", "safe", "wckeys", "all"}}
    implied["limits"] = {"limits", "safe", "all"}
    implied["qos"] = {"qos", "safe", "all"}
    return bool(names & implied[what])


def associations_for(cluster: Cluster, account: str | None, partition: str | None) -> tuple[Association, ...]:
    """Return the user's associations that an account and a partition select; the default account's where none is named."""
    account = account or cluster.default_account
    own = [row for row in cluster.associations if account is None or row.account == account]
    here = [row for row in own if row.partition is not None and row.partition == partition]
    return tuple(here or [row for row in own if row.partition is None])


def effective_qos(
    cluster: Cluster, qos: str | None, account: str | None, partition: str | None
) -> str | None:
    """Return the QOS that a job gets; None where that is not known.

    Without one of its own: the association's default, or its only one, or `normal` (slurmctld's order, seen on 22.05).
    """
    rows = associations_for(cluster, account, partition)
    if qos is not None or not rows:
        return qos
    if rows[0].default_qos is not None:
        return rows[0].default_qos
    if len(rows[0].qos) == 1:
        return rows[0].qos[0]
    return "normal" if "normal" in cluster.qos else None


def limits_for(cluster: Cluster, partition: str | None, qos: str | None, account: str | None) -> list[Rule]:
    """Return all limits of a job, the partition's own first; of a limit that several set, the one that Slurm takes."""
    described = cluster.partitions.get(partition or "")
    rule = cluster.qos.get(qos or "")
    rules: list[Rule] = []
    if described is not None:
        update: dict[str, object] = dict.fromkeys(rule.lifts if rule else ())
        if "max_time" in update:
            update["max_time_by_nodes"] = ()
        rules.append(Rule(f"partition {partition!r}", described.limits.model_copy(update=update)))
    if enforced(cluster, "limits"):
        rules += _first_of_each(_by_accounting(cluster, described, qos, account, partition))
    return rules


def _by_accounting(
    cluster: Cluster, described: Partition | None, qos: str | None, account: str | None, partition: str | None
) -> list[Rule]:
    found: list[Rule] = []
    own = described.own_qos if described else None
    if own in cluster.qos:
        found.append(Rule(f"QOS {own!r} of partition {partition!r}", cluster.qos[own or ""].limits))
    if qos in cluster.qos:
        rule = cluster.qos[qos or ""]
        found.insert(0 if rule.over_partition_qos else len(found), Rule(f"QOS {qos!r}", rule.limits))
    rows = associations_for(cluster, account, partition)
    if len(rows) == 1:
        found.append(Rule(f"account {rows[0].account!r}", rows[0].limits))
    return found


def _first_of_each(rules: list[Rule]) -> list[Rule]:
    """Return each limit once: where an earlier rule sets it, a later one's does not count."""
    seen: set[str] = set()
    reduced: list[Rule] = []
    for rule in rules:
        update: dict[str, object] = {}
        for name in Limits.model_fields:
            value = getattr(rule.limits, name)
            if isinstance(value, Totals):
                update[name] = _without(value, name, seen)
            elif name in seen:
                update[name] = _unset(value)
            elif value not in (None, (), {}):
                seen.add(name)
        reduced.append(Rule(rule.subject, rule.limits.model_copy(update=update)))
    return reduced


def _unset(value: object) -> object:
    return type(value)() if isinstance(value, (tuple, dict)) else None


def _without(totals: Totals, owner: str, seen: set[str]) -> Totals:
    update: dict[str, object] = {}
    for name in Totals.model_fields:
        value, key = getattr(totals, name), f"{owner}.{name}"
        if key in seen:
            update[name] = _unset(value)
        elif value not in (None, {}):
            seen.add(key)
    return totals.model_copy(update=update)


class Used(NamedTuple):
    """The amounts that limits count: whole nodes count whole."""

    gpus: int
    cpus_per_node: int
    memory_per_node: int | None
    """Of all of a node, the smallest that would do."""
    gpus_by_type: dict[str | None, int]
    """Those of each type on whole nodes that no GPU is asked of."""


def used_of(cluster: Cluster, ask: Ask, fitting: list[NodeGroup]) -> Used:
    """Return what limits count of a request on the nodes that fit it."""
    gpus, cpus = ask.gpus_per_node, ask.cpus_per_node
    partition = cluster.partitions.get(ask.partition or "")
    whole = ask.whole or bool(partition and partition.whole_nodes)
    by_type: dict[str | None, int] = {}
    if whole:
        # Slurm takes a node first and counts it whole then: any of those that fit must be within the limits. 26.05 takes
        # one whose GPUs they allow (seen; 24.11 does not).
        cpus = max([cpus, *(group.cpus or 0 for group in fitting)])
        counts = [group.gpu_count or 0 for group in fitting] or [0]
        gpus = max(gpus, min(counts) if (release_of(cluster) or (0, 0)) >= (26, 5) else max(counts))
        by_type = {} if ask.gpus_per_node else _gpus_of_whole_nodes(ask.nodes, fitting)
    elif fitting:
        threads = min(group.threads_per_core or 1 for group in fitting)
        cpus = -(-cpus // threads) * threads
    memory = ask.memory_per_node
    if memory == 0:  # all of a node's: Slurm takes one whose memory the limits allow (seen on 22.05 to 26.05)
        memory = min((group.memory.mib for group in fitting if group.memory), default=0)
    per_cpu = partition.limits.max_memory_per_cpu if partition else None
    if per_cpu is not None and ask.memory_per_node:  # Slurm gives further CPUs for memory over this
        cpus = max(cpus, -(-ask.memory_per_node // per_cpu.mib))
    named = by_type and all(group.names for group in fitting)
    return Used(sum(by_type.values()) if named else ask.nodes * gpus, cpus, memory, by_type)


def _gpus_of_whole_nodes(nodes: int, fitting: list[NodeGroup]) -> dict[str | None, int]:
    """GPUs of each type that limits count of whole nodes of which no GPU is asked.

    Slurm takes them in the order of weights and names, whatever the limits allow, and leaves the job waiting for the limits then
    (seen on 22.05 to 26.05). Discovery lists them so; where no names are known, as many as any choice of nodes has.
    """
    found: dict[str | None, int] = {}
    numbers = [group.count for group in fitting]
    stated = [number for number in numbers if number is not None]
    if len(stated) < len(numbers):
        return found
    named = all(group.names is not None for group in fitting)
    left = nodes
    for group, number in zip(fitting, stated, strict=True):
        taken = min(left, number) if named else max(0, nodes - sum(stated) + number)
        left -= taken
        for kind in group.kinds if taken else ():
            found[kind.gpu_type] = found.get(kind.gpu_type, 0) + taken * (kind.gpu_count or 0)
    return found


def over_limits(cluster: Cluster, limits: Limits, ask: Ask, used: Used) -> Iterator[Clause]:
    """Yield the limits that a request is over, or under."""
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
        yield from _over_by_type(cluster, totals, used, what)


def _over_time(limits: Limits, ask: Ask) -> Iterator[Clause]:
    time, most = ask.time or limits.default_time, limits.max_node_time
    if time is None:
        # Slurm then sets the time that the nodes leave, in whole minutes; none is left to too many nodes.
        if most is not None and most.seconds is not None and most.seconds < 60 * ask.nodes:
            yield Clause(
                "nodes",
                f"allows {most} of nodes times time, which leaves {count(ask.nodes, 'node')} less than a minute each",
            )
        return
    by_nodes = next((row for row in limits.max_time_by_nodes if ask.nodes <= row.nodes), None)
    if by_nodes is not None and time.exceeds(by_nodes.max_time):
        yield Clause(
            "time",
            f"allows at most {by_nodes.max_time} on up to {count(by_nodes.nodes, 'node')}, {time} is asked for",
        )
    elif limits.max_time is not None and ask.time is not None and time.exceeds(limits.max_time):
        yield Clause("time", f"allows at most {limits.max_time}, {time} is asked for")
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


def _over_by_type(cluster: Cluster, totals: Totals, used: Used, what: str) -> Iterator[Clause]:
    for gpu_type, most in (totals.gpus_by_type or {}).items():
        same = (
            one for one in used.gpus_by_type if one == gpu_type or gpu_type_matches(cluster, gpu_type, one)
        )
        if (gpus := sum(used.gpus_by_type[one] for one in same)) > most:
            yield Clause(
                "gpus",
                f"allows at most {count(most, f'{gpu_type} GPU')} {what}, and whole nodes count with all their GPUs: "
                f"those that Slurm takes have {gpus}; a constraint keeps to others",
            )


def problems(cluster: Cluster, ask: Ask) -> list[Problem]:
    """Everything that keeps a request from ever starting on an empty cluster; none: Slurm would start it.

    What is not known of the cluster is not held against the request.
    """
    found = list(_access(cluster, ask))
    partition = cluster.partitions.get(ask.partition or "")
    fitting: list[NodeGroup] = []
    if partition is not None:
        subject = f"partition {ask.partition!r}"
        fitting, misfits = fitting_nodes(cluster, partition, ask)
        found += [Problem(subject, one.text, one.about) for one in (*_of_partition(partition, ask), *misfits)]
    used = used_of(cluster, ask, fitting)
    for subject, limits in limits_for(
        cluster, ask.partition, effective_qos(cluster, ask.qos, ask.account, ask.partition), ask.account
    ):
        found += [Problem(subject, one.text, one.about) for one in over_limits(cluster, limits, ask, used)]
    return list(dict.fromkeys(found))


def problems_together(cluster: Cluster, asks: Sequence[Ask]) -> list[Problem]:
    """Return the limits of a user, and of all jobs, that the components of a heterogeneous job exceed together.

    Its components start at the same time, and Slurm holds their sum against these limits: the job waits for ever.
    """
    sharing: dict[str, tuple[Limits, list[tuple[Ask, Used]]]] = {}
    for ask in asks:
        partition = cluster.partitions.get(ask.partition or "")
        fitting = fitting_nodes(cluster, partition, ask)[0] if partition else []
        qos = effective_qos(cluster, ask.qos, ask.account, ask.partition)
        for subject, limits in limits_for(cluster, ask.partition, qos, ask.account):
            sharing.setdefault(subject, (limits, []))[1].append((ask, used_of(cluster, ask, fitting)))
    found: list[Problem] = []
    for subject, (limits, parts) in sharing.items():
        if len(parts) < 2:
            continue
        memory = [used.memory_per_node and ask.nodes * used.memory_per_node for ask, used in parts]
        in_all = (
            sum(used.gpus for _, used in parts),
            sum(ask.nodes * used.cpus_per_node for ask, used in parts),
            None if None in memory else sum(one or 0 for one in memory),
            sum(ask.nodes for ask, _ in parts),
        )
        for totals, what in ((limits.per_user, "a user"), (limits.in_all, "in all")):
            clauses = list(_over_totals(cluster, totals, in_all, Ask(), what))
            of_types = Totals.model_construct(gpus_by_type=totals.gpus_by_type)
            for gpu_type in dict.fromkeys(ask.gpu_type for ask, _ in parts if ask.gpu_type):
                gpus = sum(used.gpus for ask, used in parts if ask.gpu_type == gpu_type)
                clauses += _over_totals(cluster, of_types, (gpus, 0, None, 0), Ask(gpu_type=gpu_type), what)
            found += [
                Problem(subject, f"{one.text} by the components together", one.about) for one in clauses
            ]
    return found


def _of_partition(partition: Partition, ask: Ask) -> Iterator[Clause]:
    if partition.requires_gpu and not ask.gpus_per_node and not any(gres.name in SHARED for gres in ask.gres):
        yield Clause("gpus", "refuses jobs without a GPU")
    if partition.state != "up":
        waits = "jobs wait there" if partition.state == "down" else "it takes no jobs"
        yield Clause("partition", f"is {partition.state}: {waits}")


# Who may use it


def _access(cluster: Cluster, ask: Ask) -> Iterator[Problem]:
    partition = cluster.partitions.get(ask.partition or "", Partition.model_construct())
    subject = f"partition {ask.partition!r}"
    yield from _groups(cluster, partition, subject)
    yield from _account(cluster, ask, partition, subject)
    qos = effective_qos(cluster, ask.qos, ask.account, ask.partition)
    if qos is None:
        return
    if ask.qos is not None and cluster.qos and qos not in cluster.qos:
        yield Problem(
            f"cluster {cluster.name!r}", f"has no QOS {qos!r}; it has {', '.join(cluster.qos)}", "qos"
        )
    elif qos in cluster.qos and cluster.qos[qos].partitions:
        legal = cluster.qos[qos].partitions
        if ask.partition is not None and ask.partition not in legal:
            yield Problem(f"QOS {qos!r}", f"is legal only in {_list('partition', legal)}", "qos")
    if not partition.takes_qos(qos):
        only = f"takes only QOS {', '.join(partition.qos)}, not" if partition.qos else "does not take QOS"
        yield Problem(subject, f"{only} {qos!r}", "qos")


def _groups(cluster: Cluster, partition: Partition, subject: str) -> Iterator[Problem]:
    own = {*cluster.user_groups}
    if partition.groups and own and "root" not in own and not own & {*partition.groups}:
        yield Problem(
            subject, f"takes only the groups {', '.join(partition.groups)}, and you are in none", "partition"
        )


def _account(cluster: Cluster, ask: Ask, partition: Partition, subject: str) -> Iterator[Problem]:
    account = ask.account or cluster.default_account
    if account is not None and not partition.takes_account(account):
        only = f"takes only accounts {', '.join(partition.accounts)}, not"
        yield Problem(
            subject, f"{only if partition.accounts else 'does not take account'} {account!r}", "account"
        )
    if not cluster.associations or not enforced(cluster, "associations"):
        return
    names = sorted({row.account for row in cluster.associations})
    if ask.account is not None and ask.account not in names:
        yield Problem(f"account {ask.account!r}", f"is not one of yours: {', '.join(names)}", "account")
        return
    rows = associations_for(cluster, ask.account, ask.partition)
    if not rows:
        own = sorted({row.partition or "" for row in cluster.associations if row.account == account})
        yield Problem(f"account {account!r}", f"is for {_list('partition', own)} only", "account")
    elif ask.qos is not None and enforced(cluster, "qos"):
        legal = sorted({qos for row in rows for qos in row.qos})
        if legal and ask.qos not in legal:
            yield Problem(
                f"account {account!r}", f"may not use QOS {ask.qos!r}; it may use {', '.join(legal)}", "qos"
            )


def _list(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
