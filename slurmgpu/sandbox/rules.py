"""A described cluster's rules: QOS and limits in Slurm's words, accounts, and what no Slurm here enforces."""

from __future__ import annotations

from collections.abc import Mapping

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.limits import Limits, QosRule, Totals
from slurmgpu.planning.site_rules import missing_options, refused_options
from slurmgpu.sandbox.shape import ACCOUNTS, QosShape

__all__ = ["accounts_of", "allowed_qos", "declared_qos", "limiting_qos", "not_enforced"]

NOBODYS = "none-is-legal"
"""A QOS that no user has."""
LIFTING = {
    "max_time": "PartitionTimeLimit",
    "max_nodes": "PartitionMaxNodes",
    "min_nodes": "PartitionMinNodes",
}


def declared_qos(cluster: Cluster, types: Mapping[str, str]) -> tuple[QosShape, ...]:
    """The cluster's QOS in sacctmgr's words; ``types`` are the gres types by the profile's names of GPUs.

    A job over a limit of its own is refused (DenyOnLimit), not left waiting. A QOS that a partition names and the
    profile does not describe has no limits.
    """
    named = [one for part in cluster.partitions.values() for one in (*part.qos, *part.denied_qos)]
    rules = dict.fromkeys(named, QosRule()) | cluster.qos
    shapes = []
    for name, rule in rules.items():
        flags = [LIFTING[one] for one in rule.lifts] + (["OverPartQOS"] if rule.over_partition_qos else [])
        shape = limiting_qos(name, rule.limits, types, tuple(flags))
        factor = (f"UsageFactor={rule.usage_factor}",) if rule.usage_factor is not None else ()
        shapes.append(shape.model_copy(update={"limits": (*shape.limits, *factor)}))
    if any(allowed_qos(cluster, name) == ("AllowQos", NOBODYS) for name in cluster.partitions):
        shapes.append(QosShape(name=NOBODYS, given=False))
    return tuple(shapes)


def limiting_qos(
    name: str, limits: Limits, types: Mapping[str, str], flags: tuple[str, ...] = ()
) -> QosShape:
    """A QOS with these limits."""
    plain = {
        "Flags": ",".join(["DenyOnLimit", *flags]),
        "MaxWall": limits.max_time if limits.max_time and limits.max_time.seconds else None,
        "MaxJobsPerUser": limits.per_user.jobs,
        "GrpJobs": limits.in_all.jobs,
    }
    most = Totals(
        gpus=limits.max_gpus,
        gpus_by_type=limits.max_gpus_by_type,
        cpus=limits.max_cpus,
        memory=limits.max_memory_in_all,
        nodes=limits.max_nodes,
    )
    node_minutes = limits.max_node_time.seconds if limits.max_node_time else None
    words = {
        "MaxTRESPerJob": _tres(most, types),
        "MinTRESPerJob": _tres(Totals(gpus=limits.min_gpus, nodes=limits.min_nodes), types),
        "MaxTRESPerNode": _tres(Totals(gpus=limits.max_gpus_per_node), types),
        "MaxTRESPerUser": _tres(limits.per_user, types),
        "GrpTRES": _tres(limits.in_all, types),
        "MaxTRESMinsPerJob": f"node={node_minutes // 60}" if node_minutes else "",
    }
    return QosShape(
        name=name.lower(),
        limits=tuple(f"{key}={value}" for key, value in plain.items() if value is not None),
        tres=tuple(f"{key}={tres}" for key, tres in words.items() if tres),
    )


def _tres(totals: Totals, types: Mapping[str, str]) -> str:
    memory = totals.memory.mib if totals.memory else None
    most = {"cpu": totals.cpus, "mem": memory, "node": totals.nodes, "gres/gpu": totals.gpus}
    most |= {f"gres/gpu:{types.get(name, name)}": number for name, number in totals.gpus_by_type.items()}
    return ",".join(f"{name}={number}" for name, number in most.items() if number is not None)


def allowed_qos(cluster: Cluster, partition: str) -> tuple[str, str] | None:
    """The partition's AllowQos or DenyQos; None where every QOS is legal.

    Unless the site requires a QOS, a job may also name none, and is then in the user's own default one.
    """
    described = cluster.partitions[partition]
    required = "qos" in cluster.dialect.required
    if described.qos:
        legal = list(described.qos)
    elif any(rule.partitions for rule in cluster.qos.values()) or (required and cluster.qos):
        legal = [
            name for name, rule in cluster.qos.items() if not rule.partitions or partition in rule.partitions
        ]
    else:
        denied = ",".join(one.lower() for one in described.denied_qos)
        return ("DenyQos", denied) if denied else None
    if not required and cluster.dialect.qos is None and "normal" not in cluster.qos:
        legal.append("normal")
    # A partition where none is legal would otherwise allow all; 26.05 wants a QOS that exists.
    return "AllowQos", ",".join(dict.fromkeys(one.lower() for one in legal)) or NOBODYS


def accounts_of(cluster: Cluster) -> tuple[str, ...]:
    """The cluster's accounts, the default one first, with each suffix (`_g`, `@a100`); any sandbox's if none is known."""
    rules = list(filter(None, (cluster.dialect.account, *(p.account for p in cluster.partitions.values()))))
    named = [cluster.default_account] if cluster.default_account else []
    named += [one.account for one in cluster.associations]
    named += [one for partition in cluster.partitions.values() for one in partition.accounts]
    named += [rule.example for rule in rules if rule.example]
    base = named or list(ACCOUNTS)
    suffixes = [text for rule in rules for text in (rule.suffix, *rule.suffix_by_gpu_type.values()) if text]
    bare = [name[: -len(_suffix(name, suffixes)) or None] for name in base]
    with_suffix = [name + suffix for name in bare for suffix in suffixes]
    # Slurm keeps them in lower case.
    return tuple(dict.fromkeys(name.lower() for name in [*base, *with_suffix]))


def _suffix(name: str, suffixes: list[str]) -> str:
    return next((one for one in suffixes if name.endswith(one)), "")


def not_enforced(cluster: Cluster) -> tuple[str, ...]:
    """What the profile says and the twin does not hold anybody to, as sentences about a job."""
    dialect, groups = cluster.dialect, [one for part in cluster.partitions.values() for one in part.nodes]
    limits = [part.limits for part in cluster.partitions.values()]
    # Without a default partition Slurm itself requires one; with described QOS, it requires one of them.
    enforced = {"partition"} | ({"qos"} if cluster.qos else set())
    required = missing_options(cluster, enforced)
    required += ["the type of GPU"] if "gpu_type" in dialect.required else []
    unwanted = {
        "cpus-per-task": dialect.cpus == "srun",
        "GPUs": dialect.gpus in {"srun", "none"},
        "ntasks-per-node": not dialect.tasks,
        "partition": dialect.partition == "never",
    }
    refused = dict.fromkeys(
        [*refused_options(cluster), *(word for word, applies in unwanted.items() if applies)]
    )
    rules = {
        f"a job must name {' and '.join(required)}": required,
        f"a job may not name {' or '.join(refused)}": refused,
        "how accounts are called": dialect.account and dialect.account.pattern,
        "the most CPUs or memory for a GPU": any(g.max_cpus_per_gpu or g.max_memory_per_gpu for g in groups),
        "requests are rounded up to parts of a node": any(group.unit for group in groups),
        "jobs over several nodes take all their GPUs": any(group.whole_across_nodes for group in groups),
        "the longest time follows the number of nodes": any(one.max_time_by_nodes for one in limits),
        "which Unix groups may submit": any(part.groups for part in cluster.partitions.values()),
    }
    return tuple(rule for rule, applies in rules.items() if applies)
