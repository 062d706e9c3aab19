"""From a described cluster to a sandbox like it, and from a sandbox to the profile that describes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmgpu.errors import InvalidInput
from slurmgpu.models.cluster import Cluster, GpuType, Limits, NodeGroup, Partition
from slurmgpu.models.units import Duration, Memory
from slurmgpu.sandbox.qos import DeclaredQos, allowed_qos, declared_qos
from slurmgpu.sandbox.shape import ACCOUNTS, Gpus, NodeKind, PartitionShape, QosShape, Shape

__all__ = ["own_profile", "twin_of"]

# Assumed where a profile does not say; each use is told to the user.
NODES, GPUS, CPUS, CPUS_PER_GPU, MIB_PER_CPU = 4, 4, 64, 16, 4096
# Sandboxes of more nodes than this take long to start and show nothing more.
MOST_NODES = 20_000


def own_profile(name: str, shape: Shape) -> Cluster:
    """The profile of a sandbox of `default_shape`, for slurmgpu's own planning."""
    (kind,) = shape.kinds
    gpus = kind.gpus[0] if kind.gpus else Gpus(count=0)
    partitions = {}
    for partition in shape.partitions:
        options = dict(partition.options)
        group = NodeGroup(
            count=kind.count if partition.nodes == kind.hostlist else partition.nodes.count(",") + 1,
            gpus=gpus.count,
            gpu_type=gpus.type,
            cpus=kind.cpus,
            memory=Memory(kind.memory_mib),
            features=kind.features,
        )
        default_time = options.get("DefaultTime")
        limits = Limits(
            max_time=Duration.parse(options["MaxTime"]),
            default_time=Duration.parse(default_time) if default_time else None,
        )
        partitions[partition.name] = Partition(
            nodes=(group,), limits=limits, preemptible=options["PreemptMode"] != "OFF"
        )
    return Cluster(
        name=f"sandbox-{name}",
        description="A sandbox on this machine, with pretend GPUs",
        default_partition="gpu",
        partitions=partitions,
        gpu_types={gpus.type: GpuType()} if gpus.type else {},
    )


def twin_of(
    cluster: Cluster, qos: Sequence[DeclaredQos] = (), accounts: Sequence[str] = ()
) -> tuple[Shape, list[str]]:
    """A shape like the described cluster, with the site's QOS and accounts, and what had to be assumed.

    What the profile says and the shape cannot enforce stands in the shape itself. Nodes that two partitions
    describe alike are taken to be the same ones: sites put several partitions over one set of nodes. Raises
    InvalidInput for a profile without partitions.
    """
    if not cluster.known:
        raise InvalidInput(
            f"--like {cluster.name}: the profile describes no partition, so there is nothing to be like",
            hint="`slurmgpu cluster list` shows the profiles, docs/clusters.md says how to describe partitions",
        )
    return _Twin(cluster, qos, accounts).build()


class _Twin:
    def __init__(self, cluster: Cluster, qos: Sequence[DeclaredQos], accounts: Sequence[str]) -> None:
        self.cluster = cluster
        self.declared = qos
        self.accounts = tuple(accounts)
        self.notes: list[str] = []
        self.kinds: dict[str, NodeKind] = {}
        # Equal groups of one partition are different nodes: a group is known by its how-manieth of them, too.
        self.shared: dict[tuple[NodeGroup, int], NodeKind] = {}
        self.users: dict[str, list[str]] = {}
        self.partition_qos: list[QosShape] = []

    def build(self) -> tuple[Shape, list[str]]:
        cluster = self.cluster
        partitions = tuple(self._partition(*item) for item in cluster.partitions.items())
        if sum(kind.count for kind in self.kinds.values()) > MOST_NODES:
            raise InvalidInput(f"--like {cluster.name}: a twin can have {MOST_NODES} nodes at most")
        self._say_who_shares()
        self._say_what_is_open()
        shape = Shape(
            kinds=tuple(self.kinds.values()),
            partitions=partitions,
            accounts=self.accounts or ACCOUNTS,
            qos=(*declared_qos(self.declared), *self.partition_qos),
            like=cluster.name,
            not_enforced=tuple(self._not_enforced()),
            live=False,
            # What is over a limit is refused at once, not left waiting for ever.
            options=(("EnforcePartLimits", "ALL"),),
        )
        return shape, self.notes

    def _partition(self, name: str, partition: Partition) -> PartitionShape:
        seen: dict[NodeGroup, int] = {}
        hostlists = []
        for group in _groups(partition):
            hostlists.append(self._kind(name, group, seen.get(group, 0)).hostlist)
            seen[group] = seen.get(group, 0) + 1
        return PartitionShape(
            name=name, nodes=",".join(hostlists), options=tuple(self._options(name, partition))
        )

    def _options(self, name: str, partition: Partition) -> list[tuple[str, str]]:
        limits, options = partition.limits, []
        if name == self._default_partition():
            options.append(("Default", "YES"))
        options.append(("MaxTime", str(limits.max_time) if limits.max_time else "UNLIMITED"))
        if limits.default_time:
            options.append(("DefaultTime", str(limits.default_time)))
        if limits.max_nodes:
            options.append(("MaxNodes", str(limits.max_nodes)))
        if limits.max_memory:
            options.append(("MaxMemPerNode", str(limits.max_memory.mib)))
        if self.cluster.dialect.whole_nodes:
            options.append(("OverSubscribe", "EXCLUSIVE"))
        qos = self._qos_of(name, partition)
        if qos:
            self.partition_qos.append(qos)
            options.append(("QOS", qos.name))
        allowed = allowed_qos(self.declared, name, "qos" in self.cluster.dialect.required)
        if allowed:
            options.append(("AllowQos", allowed))
        tier, mode = ("1", "REQUEUE") if partition.preemptible else ("10", "OFF")
        return [*options, ("PriorityTier", tier), ("PreemptMode", mode)]

    def _qos_of(self, name: str, partition: Partition) -> QosShape | None:
        """The QOS that hangs on the partition: by it Slurm limits the GPUs and CPUs of a job."""
        limits = partition.limits
        most = [f"gres/gpu={limits.max_gpus}"] if limits.max_gpus else []
        most += [f"cpu={limits.max_cpus}"] if limits.max_cpus else []
        tres = [f"MaxTRESPerJob={','.join(most)}"] if most else []
        tres += ["MinTRESPerJob=gres/gpu=1"] if partition.requires_gpu else []
        if not tres:
            return None
        return QosShape(name=f"partition-{name.lower()}", limits=("Flags=DenyOnLimit",), tres=tuple(tres))

    def _default_partition(self) -> str | None:
        if self.cluster.default_partition:
            return self.cluster.default_partition
        return None if "partition" in self.cluster.dialect.required else next(iter(self.cluster.partitions))

    def _kind(self, partition: str, group: NodeGroup, again: int) -> NodeKind:
        kind = self.shared.get((group, again))
        if kind is None:
            kind = self._new_kind(partition, group)
            self.kinds[kind.prefix] = self.shared[group, again] = kind
        self.users.setdefault(kind.prefix, []).append(partition)
        return kind

    def _new_kind(self, partition: str, group: NodeGroup) -> NodeKind:
        assumed = []
        gpus = group.gpus
        if gpus is None:
            gpus = GPUS
            assumed.append(f"{gpus} GPUs each")
        cpus = group.cpus
        if cpus is None:
            cpus = CPUS_PER_GPU * gpus or CPUS
            assumed.append(f"{cpus} CPUs each")
        memory = group.memory
        if memory is None:
            memory = Memory(MIB_PER_CPU * cpus)
            assumed.append(f"{memory} of memory each")
        count = group.count
        if count is None:
            count = self._enough(group)
            assumed.insert(0, f"{count} nodes")
        if assumed:
            where = f"{partition}, nodes with {group.gpu_type}" if group.gpu_type else partition
            self.notes.append(f"{where}: not stated, so assumed: {', '.join(assumed)}")
        known = self.cluster.gpu_types.get(group.gpu_type or "", GpuType())
        return NodeKind(
            prefix=self._prefix(group.gpu_type or "gpu" if gpus else "cpu"),
            count=count,
            cpus=cpus,
            memory_mib=memory.mib,
            gpus=(Gpus(count=gpus, type=known.gres or group.gpu_type),) if gpus else (),
            features=_features(group, known),
        )

    def _enough(self, group: NodeGroup) -> int:
        """A number of nodes that no job within the limits of the group's partitions is too large for."""
        partitions = [one for one in self.cluster.partitions.values() if group in _groups(one)]
        return max([NODES, *(one.limits.max_nodes or 0 for one in partitions)])

    def _prefix(self, what: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "", what.lower()) or "gpu"
        # The node's own number follows: a100-1, and for further kinds a100b-1, a100c-1.
        letters = ("", *"bcdefghijklmnopqrstuvwxyz", *(f"x{number}" for number in range(len(self.kinds))))
        return next(f"{stem}{one}-" for one in letters if f"{stem}{one}-" not in self.kinds)

    def _say_who_shares(self) -> None:
        shared: dict[tuple[str, ...], int] = {}
        for prefix, users in self.users.items():
            if len(users) > 1:
                shared[tuple(users)] = shared.get(tuple(users), 0) + self.kinds[prefix].count
        self.notes += [
            f"{' and '.join(users)} describe {count} nodes alike: taken to share them"
            for users, count in shared.items()
        ]

    def _say_what_is_open(self) -> None:
        cluster = self.cluster
        default = self._default_partition()
        if default and not cluster.default_partition and len(cluster.partitions) > 1:
            self.notes.append(f"no default partition stated: {default} is taken for it")
        endless = [name for name, one in cluster.partitions.items() if not one.limits.max_time]
        if endless:
            self.notes.append(f"no longest time stated, so none is set: {', '.join(endless)}")

    def _not_enforced(self) -> list[str]:
        """What the profile says and this Slurm does not hold anybody to."""
        dialect, parts = self.cluster.dialect, []
        # Without a default partition Slurm itself requires one; with declared QOS, it requires one of them.
        enforced = {"partition"} | ({"qos"} if self.declared else set())
        required = [f"--{one}" for one in dialect.required if one not in enforced]
        if required:
            parts.append(f"a job must give {' and '.join(required)}")
        unwanted = {
            "--mem": dialect.memory == "none",
            "--cpus-per-task": dialect.cpus == "none",
            "GPUs": dialect.gpus == "none",
            "--ntasks-per-node": not dialect.tasks,
            "--partition": not dialect.partition,
        }
        refused = [word for word, applies in unwanted.items() if applies]
        if refused:
            parts.append(f"a job may not ask for {' or '.join(refused)}")
        return parts


def _groups(partition: Partition) -> tuple[NodeGroup, ...]:
    return partition.nodes or (NodeGroup(gpus=None),)


def _features(group: NodeGroup, known: GpuType) -> tuple[str, ...]:
    # A type may be selected by several features together: hopper&80gb.
    selecting = (known.constraint or "").split("&")
    return tuple(
        dict.fromkeys([*group.features, *(one for one in selecting if re.fullmatch(r"[\w.:+-]+", one))])
    )
