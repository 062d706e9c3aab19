"""Would Slurm start this? A request in numbers against everything that is known of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.planning.ask import SHARED, Ask, Clause, Problem
from slurmgpu.planning.nodes import fitting_nodes
from slurmgpu.planning.over import over_limits, used_of
from slurmgpu.planning.rules import associations_for, effective_qos, enforced, limits_for

__all__ = ["problems"]


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
    if partition.qos and qos not in partition.qos:
        yield Problem(subject, f"takes only QOS {', '.join(partition.qos)}, not {qos!r}", "qos")
    elif qos in partition.denied_qos:
        yield Problem(subject, f"does not take QOS {qos!r}", "qos")


def _account(cluster: Cluster, ask: Ask, partition: Partition, subject: str) -> Iterator[Problem]:
    account = ask.account or cluster.default_account
    if account is not None and partition.accounts and account not in partition.accounts:
        yield Problem(
            subject, f"takes only accounts {', '.join(partition.accounts)}, not {account!r}", "account"
        )
    elif account in partition.denied_accounts:
        yield Problem(subject, f"does not take account {account!r}", "account")
    if not cluster.associations or not enforced(cluster, "associations"):
        return
    names = sorted({row.account for row in cluster.associations})
    if ask.account is not None and ask.account not in names:
        yield Problem(f"account {ask.account!r}", f"is none of yours: {', '.join(names)}", "account")
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
