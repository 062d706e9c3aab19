"""Rules of a described cluster beside its limits: its accounts, and what no Slurm here holds jobs to."""

from __future__ import annotations

from slurmgpu.models.cluster import Cluster
from slurmgpu.sandbox.shape import ACCOUNTS

__all__ = ["accounts_of", "not_enforced"]


def accounts_of(cluster: Cluster) -> tuple[str, ...]:
    """Accounts as the cluster's are called, the default one first; those of any sandbox where nothing is known.

    Where names have suffixes (`_g`, `@a100`), each account stands with each of them, too.
    """
    rules = [
        one for one in (cluster.dialect.account, *(p.account for p in cluster.partitions.values())) if one
    ]
    named = [cluster.default_account] if cluster.default_account else []
    named += [one.account for one in cluster.associations]
    named += [one for partition in cluster.partitions.values() for one in partition.accounts]
    named += [rule.example for rule in rules if rule.example]
    base = named or list(ACCOUNTS)
    suffixes = [text for rule in rules for text in (rule.suffix, *rule.suffix_by_gpu_type.values()) if text]
    with_suffix = [
        name + suffix
        for name in base
        for suffix in suffixes
        if not any(name.endswith(one) for one in suffixes)
    ]
    # Slurm has them in lower case.
    return tuple(dict.fromkeys(name.lower() for name in [*base, *with_suffix]))


def not_enforced(cluster: Cluster) -> tuple[str, ...]:
    """What the profile says and the twin does not hold anybody to, as sentences about a job."""
    dialect, groups = cluster.dialect, [one for part in cluster.partitions.values() for one in part.nodes]
    limits = [part.limits for part in cluster.partitions.values()]
    # Without a default partition Slurm itself requires one; with described QOS, it requires one of them.
    enforced = {"partition"} | ({"qos"} if cluster.qos else set())
    required = [one.replace("gpu_type", "the type of GPU") for one in dialect.required if one not in enforced]
    unwanted = {
        "mem": dialect.memory == "none",
        "cpus-per-task": dialect.cpus in {"none", "srun"},
        "GPUs": dialect.gpus in {"srun", "none"},
        "ntasks-per-node": not dialect.tasks,
        "partition": dialect.partition == "never",
    }
    refused = dict.fromkeys([*dialect.forbidden, *(word for word, applies in unwanted.items() if applies)])
    rules = {
        f"a job must name {' and '.join(required)}": required,
        f"a job may not name {' or '.join(refused)}": refused,
        "how accounts are called": dialect.account and dialect.account.pattern,
        "the most CPUs or memory for a GPU": any(g.max_cpus_per_gpu or g.max_memory_per_gpu for g in groups),
        "requests are rounded up to parts of a node": any(group.unit for group in groups),
        "jobs over several nodes take all their GPUs": any(group.whole_across_nodes for group in groups),
        "the longest time follows the number of nodes": any(one.max_time_by_nodes for one in limits),
        "which Unix groups may submit": any(part.groups for part in cluster.partitions.values()),
        "shards of GPUs": any(group.shards for group in groups),
    }
    return tuple(rule for rule, applies in rules.items() if applies)
