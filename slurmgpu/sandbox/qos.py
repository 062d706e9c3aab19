"""A site's QOS and limits, and how Slurm is told of them."""

from __future__ import annotations

from collections.abc import Mapping

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.limits import Limits, QosRule, Totals
from slurmgpu.sandbox.shape import QosShape

__all__ = ["allowed_qos", "declared_qos", "limiting_qos"]

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
    plain = [f"Flags={','.join(['DenyOnLimit', *flags])}"]
    plain += [f"MaxWall={limits.max_time}"] if limits.max_time and limits.max_time.seconds else []
    plain += [f"MaxJobsPerUser={limits.per_user.jobs}"] if limits.per_user.jobs is not None else []
    plain += [f"GrpJobs={limits.in_all.jobs}"] if limits.in_all.jobs is not None else []
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
        limits=tuple(plain),
        tres=tuple(f"{key}={tres}" for key, tres in words.items() if tres),
    )


def _tres(totals: Totals, types: Mapping[str, str]) -> str:
    words = [f"cpu={totals.cpus}"] if totals.cpus is not None else []
    words += [f"mem={totals.memory.mib}"] if totals.memory else []
    words += [f"node={totals.nodes}"] if totals.nodes is not None else []
    words += [f"gres/gpu={totals.gpus}"] if totals.gpus is not None else []
    words += [f"gres/gpu:{types.get(name, name)}={most}" for name, most in totals.gpus_by_type.items()]
    return ",".join(words)


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
