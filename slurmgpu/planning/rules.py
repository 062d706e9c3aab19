"""Which limits hold for a job: the partition's, its QOS', the job's QOS', the account's (resource_limits of Slurm)."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, Partition
from slurmgpu.models.limits import Association, Limits, Totals

__all__ = ["Rule", "associations_for", "effective_qos", "enforced", "limits_for"]


class Rule(NamedTuple):
    """Limits, and whose they are."""

    subject: str
    limits: Limits


def enforced(cluster: Cluster, what: str) -> bool:
    """Whether accounting enforces this (AccountingStorageEnforce); taken as enforced where nothing is known of it."""
    if cluster.slurm.release is None and not cluster.slurm.enforces:
        return True
    names = set(cluster.slurm.enforces)
    implied = {"associations": {"associations", "limits", "qos", "safe", "wckeys", "all"}}
    implied["limits"] = {"limits", "safe", "all"}
    implied["qos"] = {"qos", "safe", "all"}
    return bool(names & implied[what])


def associations_for(cluster: Cluster, account: str | None, partition: str | None) -> tuple[Association, ...]:
    """The user's associations that an account and a partition select; the default account's where none is named."""
    account = account or cluster.default_account
    own = [row for row in cluster.associations if account is None or row.account == account]
    here = [row for row in own if row.partition is not None and row.partition == partition]
    return tuple(here or [row for row in own if row.partition is None])


def effective_qos(
    cluster: Cluster, qos: str | None, account: str | None, partition: str | None
) -> str | None:
    """The QOS that a job gets; None where that is not known.

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
    """All limits of a job, the partition's own first; of a limit that several set, the one that Slurm takes."""
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
    """Each limit once: where an earlier rule sets it, a later one's does not count."""
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
