"""From a described cluster to a sandbox like it: nodes, partitions, QOS and limits, accounts, and the rest as notes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from slurmgpu.errors import InvalidInput
from slurmgpu.models.cluster import Cluster, GpuType, Limits, NodeGroup, Partition, QosRule, Totals
from slurmgpu.models.units import Memory
from slurmgpu.planning.accounts import missing_options, refused_options
from slurmgpu.sandbox.configuration import ACCOUNTS, NodeGpus, NodeKind, PartitionShape, QosShape, Shape

__all__ = ["GPUS", "accounts_of", "allowed_qos", "declared_qos", "limiting_qos", "not_enforced", "twin_of"]

CPUS_COME_SINCE = (22, 5)
"""The release of Slurm from which on jobs get a GPU's CPUs (DefCpuPerGPU) whose tasks ask for fewer."""

# Assumed where a profile is silent; each use is told to the user.
NODES, GPUS, CPUS, CPUS_PER_GPU, MIB_PER_CPU = 4, 4, 64, 16, 4096
# Sandboxes of more nodes than this take long to start and show nothing more.
MOST_NODES = 20_000
NOBODYS = "none-is-legal"
"""A QOS that no user has."""
LIFTING = {
    "max_time": "PartitionTimeLimit", "max_nodes": "PartitionMaxNodes", "min_nodes": "PartitionMinNodes"
}  # fmt: skip


def declared_qos(cluster: Cluster, types: Mapping[str, str]) -> tuple[QosShape, ...]:
    """Return the cluster's QOS in sacctmgr's words; ``types`` are the gres types by the profile's names of GPUs.

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
    """Return a QOS with these limits."""
    plain = {
        "Flags": ",".join(["DenyOnLimit", *flags]),
        "MaxWall": limits.max_time if limits.max_time and limits.max_time.seconds else None,
        "MaxJobsPerUser": limits.per_user.jobs,
        "GrpJobs": limits.in_all.jobs,
    }
    most = Totals(
        gpus=limits.max_gpus, gpus_by_type=limits.max_gpus_by_type, cpus=limits.max_cpus,
        memory=limits.max_memory_in_all, nodes=limits.max_nodes,
    )  # fmt: skip
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
    """Return the partition's AllowQos or DenyQos; None where every QOS is legal.

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
    """Return the cluster's accounts, the default one first, with each suffix (`_g`, `@a100`); a sandbox's if none is known."""
    rules = list(filter(None, (cluster.dialect.account, *(p.account for p in cluster.partitions.values()))))
    named = [cluster.default_account] if cluster.default_account else []
    named += [one.account for one in cluster.associations]
    named += [one for partition in cluster.partitions.values() for one in partition.accounts]
    named += [rule.example for rule in rules if rule.example]
    base = named or list(ACCOUNTS)
    suffixes = [text for rule in rules for text in (rule.suffix, *rule.suffix_by_gpu_type.values()) if text]
    bare = [next((name.removesuffix(one) for one in suffixes if name.endswith(one)), name) for name in base]
    with_suffix = [name + suffix for name in bare for suffix in suffixes]
    # Slurm keeps them in lower case.
    return tuple(dict.fromkeys(name.lower() for name in [*base, *with_suffix]))


def not_enforced(cluster: Cluster) -> tuple[str, ...]:
    """Return the rules of the profile that the twin does not enforce, as sentences about a job."""
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


def twin_of(cluster: Cluster, release: tuple[int, int] | None = None) -> tuple[Shape, list[str]]:
    """Return a shape like the described cluster, and its assumptions; ``release``: of the Slurm that is to run it.

    The shape itself lists the rules of the profile that it cannot enforce. Nodes that two partitions
    describe alike are taken to be the same ones: sites put several partitions over one set of nodes. Raises
    InvalidInput for a profile without partitions.
    """
    if not cluster.known:
        raise InvalidInput(
            f"--like {cluster.name}: the profile describes no partition, so there is nothing to be like",
            hint="`slurmgpu cluster list` shows the profiles, docs/clusters.md says how to describe partitions",
        )
    return _Twin(cluster, release).build()


class _Twin:
    def __init__(self, cluster: Cluster, release: tuple[int, int] | None) -> None:
        self.cluster = cluster
        self.release = release
        self.types = {name: known.gres or name for name, known in cluster.gpu_types.items()}
        self.notes: list[str] = []
        self.kinds: dict[str, NodeKind] = {}
        # Equal groups of one partition are different nodes: a group is known by its how-manieth of them, too.
        self.shared: dict[tuple[str, int], NodeKind] = {}
        self.users: dict[str, list[str]] = {}
        self.partition_qos: list[QosShape] = []
        self.default_partition = cluster.default_partition
        if not self.default_partition and "partition" not in cluster.dialect.required:
            self.default_partition = next(iter(cluster.partitions))

    def build(self) -> tuple[Shape, list[str]]:
        cluster = self.cluster
        partitions = tuple(self._partition(*item) for item in cluster.partitions.items())
        if sum(kind.count for kind in self.kinds.values()) > MOST_NODES:
            raise InvalidInput(f"--like {cluster.name}: a twin can have {MOST_NODES} nodes at most")
        self._note_assumptions()
        # Where it is not known what the site does: a job over a limit is refused, not left waiting for ever.
        options = {
            "EnforcePartLimits": (cluster.slurm.refuses_over_limits or "all").upper(),
            "MaxArraySize": cluster.slurm.max_array_size,
            "JobRequeue": "0" if cluster.slurm.requeues is False else None,
            "Licenses": ",".join(f"{name}:{count}" for name, count in cluster.licenses.items()),
        }
        shape = Shape(
            kinds=tuple(self.kinds.values()),
            partitions=partitions,
            accounts=accounts_of(cluster),
            qos=(*declared_qos(cluster, self.types), *self.partition_qos),
            default_qos=(cluster.dialect.qos or "normal").lower(),
            like=cluster.name,
            not_enforced=not_enforced(cluster),
            live=False,
            options=tuple((name, str(value)) for name, value in options.items() if value),
        )
        return shape, self.notes

    def _partition(self, name: str, partition: Partition) -> PartitionShape:
        counted = Counter[str]()
        hostlists = []
        for group in _groups(partition):
            key = group.model_dump_json()
            kind = self.shared.get((key, counted[key]))
            if kind is None:
                kind = self._kind(name, group, key)
                self.kinds[kind.prefix] = self.shared[key, counted[key]] = kind
            self.users.setdefault(kind.prefix, []).append(name)
            hostlists.append(kind.hostlist)
            counted[key] += 1
        limits = partition.limits
        by_nodes = [row.max_time for row in limits.max_time_by_nodes]
        longest = limits.max_time or max(by_nodes, key=lambda time: time.seconds or 0, default=None)
        stated: dict[str, object] = {
            "Default": "YES" if name == self.default_partition else None,
            "MaxTime": longest or "UNLIMITED",
            "DefaultTime": limits.default_time,
            "MinNodes": limits.min_nodes,
            "MaxNodes": limits.max_nodes,
            "MaxCPUsPerNode": limits.max_cpus_per_node,
            "MaxMemPerNode": _mib(limits.max_memory),
            # Slurm knows one of the two for a partition.
            "MaxMemPerCPU": None if limits.max_memory else _mib(limits.max_memory_per_cpu),
            "DefMemPerCPU": _mib(partition.default_memory_per_cpu),
            "DefCpuPerGPU": partition.default_cpus_per_gpu or self._cpus_that_come(partition),
            "DefMemPerGPU": _mib(partition.default_memory_per_gpu),
            "OverSubscribe": "EXCLUSIVE" if self._gives_whole_nodes(partition) else None,
            "QOS": self._own_qos(name, partition),
            "AllowAccounts": ",".join(partition.accounts),
            "DenyAccounts": ",".join(partition.denied_accounts),
            "State": partition.state.upper() if partition.state != "up" else None,
        }
        allowed = allowed_qos(self.cluster, name)
        options = [(key, str(value)) for key, value in stated.items() if value] + (
            [allowed] if allowed else []
        )
        tier, mode = ("1", "REQUEUE") if partition.preemptible else ("10", "OFF")
        options += [("PriorityTier", tier), ("PreemptMode", mode)]
        return PartitionShape(name=name, nodes=",".join(hostlists), options=tuple(options))

    def _cpus_that_come(self, partition: Partition) -> int | None:
        """Return the CPUs of each GPU where the site gives them by itself, as far as it says how many."""
        if self.cluster.dialect.cpus not in ("srun", "none") or self._gives_whole_nodes(partition):
            return None
        # Where nodes are given in parts, a GPU gets those of its part.
        given = (
            one.cpus_per_gpu or ((one.unit.cpus or 0) // (one.unit.gpus or 1) if one.unit else 0)
            for one in partition.nodes
        )
        return min(filter(None, given), default=None)

    def _gives_whole_nodes(self, partition: Partition) -> bool:
        return self.cluster.dialect.whole_nodes if partition.whole_nodes is None else partition.whole_nodes

    def _own_qos(self, name: str, partition: Partition) -> str | None:
        """Return the QOS that hangs on the partition: by it Slurm limits what the partition's own line cannot."""
        own = self.cluster.qos[partition.own_qos].limits if partition.own_qos else Limits()
        here = {key: getattr(partition.limits, key) for key in partition.limits.model_fields_set}
        # These three are on the partition's line.
        here |= {key: getattr(own, key) for key in ("max_time", "max_nodes", "min_nodes")}
        limits = own.model_copy(update=here)
        if partition.requires_gpu and not limits.min_gpus:
            limits = limits.model_copy(update={"min_gpus": 1})
        qos = limiting_qos(f"partition-{name}", limits, self.types)
        if len(qos.limits) == 1 and not qos.tres:
            return None
        self.partition_qos.append(qos)
        return qos.name

    def _kind(self, partition: str, group: NodeGroup, key: str) -> NodeKind:
        cluster, assumed = self.cluster, []
        gpus = group.gpu_count
        if gpus is None:
            gpus = GPUS
            assumed.append(f"{gpus} GPUs each")
        cpus = group.cpus
        if cpus is None:
            cpus = (group.cpus_per_gpu or CPUS_PER_GPU) * gpus or CPUS
            assumed.append(f"{cpus} CPUs each")
        memory = group.memory
        if memory is None:
            share = group.memory_per_gpu
            per_cpu = max(MIB_PER_CPU, _mib(cluster.partitions[partition].default_memory_per_cpu) or 0)
            memory = Memory(share.mib * gpus) if share and gpus else Memory(per_cpu * cpus)
            assumed.append(f"{memory} of memory each")
        count = group.count
        if count is None:
            # As many as no job within the limits of the group's partitions is too large for.
            count = max(
                NODES,
                *(
                    one.limits.max_nodes or 0
                    for one in cluster.partitions.values()
                    if key in (other.model_dump_json() for other in _groups(one))
                ),
            )
            assumed.insert(0, f"{count} nodes")
        types: dict[str | None, int] = {}
        types.update(group.gpus.items() if isinstance(group.gpus, dict) else [(group.gpu_type, gpus)])
        types = {name: number for name, number in types.items() if number}
        if assumed:
            names = " and ".join(name for name in types if name)
            where = f"{partition}, nodes with {names}" if names else partition
            self.notes.append(f"{where}: not stated, so assumed: {', '.join(assumed)}")
        # A type may be selected by several features together: hopper&80gb.
        known = [cluster.gpu_types.get(name or "", GpuType()) for name in types]
        selecting = [one for gpu in known for one in (gpu.constraint or "").split("&")]
        stem = next(iter(types), None) or ("gpu" if gpus else "cpu")
        stem = re.sub(r"[^a-z0-9]+", "", stem.lower()) or "gpu"
        # The node's own number follows: a100-1, and for further kinds a100b-1, a100c-1.
        letters = ("", *"bcdefghijklmnopqrstuvwxyz", *(f"x{number}" for number in range(len(self.kinds))))
        gres = (*group.gres.items(), ("shard", group.shards or 0))
        return NodeKind(
            prefix=next(prefix for one in letters if (prefix := f"{stem}{one}-") not in self.kinds),
            count=count,
            cpus=cpus,
            memory_mib=memory.mib,
            gpus=tuple(
                NodeGpus(count=number, type=self.types.get(name, name) if name else None)
                for name, number in types.items()
            ),
            features=tuple(
                dict.fromkeys(
                    [*group.features, *(one for one in selecting if re.fullmatch(r"[\w.:+-]+", one))]
                )
            ),
            threads=group.threads_per_core or 1,
            other_gres=tuple((name, number) for name, number in gres if number),
        )

    def _note_assumptions(self) -> None:
        cluster = self.cluster
        shared = Counter[tuple[str, ...]]()
        for prefix, users in self.users.items():
            if len(users) > 1:
                shared[tuple(users)] += self.kinds[prefix].count
        self.notes += [
            f"{' and '.join(users)} describe {count} nodes alike: taken to share them"
            for users, count in shared.items()
        ]
        default, described = self.default_partition, cluster.partitions.items()
        if default and not cluster.default_partition and len(described) > 1:
            self.notes.append(f"no default partition stated: {default} is taken for it")
        endless = [
            name for name, one in described if not (one.limits.max_time or one.limits.max_time_by_nodes)
        ]
        if endless:
            self.notes.append(f"no longest time stated, so none is set: {', '.join(endless)}")
        given = [name for name, one in described if self._cpus_that_come(one)]
        # Jobs that name no tasks get them (seen on 20.11).
        if given and cluster.dialect.tasks and self.release and self.release < CPUS_COME_SINCE:
            self.notes.append(
                "CPUs come with GPUs by DefCpuPerGPU, and Slurm before 22.05 refuses jobs whose tasks ask for fewer, as "
                f"plans for this site do: {', '.join(given)}"
            )


def _mib(memory: Memory | None) -> int | None:
    return memory.mib if memory else None


def _groups(partition: Partition) -> tuple[NodeGroup, ...]:
    return partition.nodes or (NodeGroup(gpus=None),)
