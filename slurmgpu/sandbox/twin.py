"""From a described cluster to a sandbox like it, and from a sandbox to the profile that describes it."""

from __future__ import annotations

import re

from slurmgpu.errors import InvalidInput
from slurmgpu.models.cluster import Cluster, GpuType, NodeGroup, Partition
from slurmgpu.models.limits import Limits
from slurmgpu.models.units import Duration, Memory
from slurmgpu.sandbox.shape import NodeKind, PartitionShape, QosShape, Shape

__all__ = ["own_profile", "twin_of"]

# Assumed where a profile does not say; each use is told to the user.
NODES, GPUS, CPUS, CPUS_PER_GPU, MIB_PER_CPU = 4, 4, 64, 16, 4096
# Sandboxes of more nodes than this take long to start and show nothing more.
MOST_NODES = 20_000


def own_profile(name: str, shape: Shape) -> Cluster:
    """The profile of a sandbox of `default_shape`, for slurmgpu's own planning."""
    (kind,) = shape.kinds
    partitions = {}
    for partition in shape.partitions:
        options = dict(partition.options)
        group = NodeGroup(
            count=kind.count if partition.nodes == kind.hostlist else partition.nodes.count(",") + 1,
            gpus=kind.gpus,
            gpu_type=kind.gpu_type,
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
        gpu_types={kind.gpu_type: GpuType()} if kind.gpu_type else {},
    )


def twin_of(cluster: Cluster) -> tuple[Shape, list[str]]:
    """A shape like the described cluster, and what had to be assumed or could not be copied.

    Groups of nodes that two partitions describe alike, number included, are taken to be the same nodes: sites
    put several partitions over one set of nodes. Raises InvalidInput for a profile without partitions.
    """
    if not cluster.known:
        raise InvalidInput(
            f"--like {cluster.name}: the profile describes no partition, so there is nothing to be like",
            hint="`slurmgpu cluster list` shows the profiles, docs/clusters.md says how to describe partitions",
        )
    return _Twin(cluster).build()


class _Twin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.notes: list[str] = []
        self.kinds: dict[str, NodeKind] = {}
        self.shared: dict[str, NodeKind] = {}
        self.users: dict[str, list[str]] = {}
        self.qos: list[QosShape] = []

    def build(self) -> tuple[Shape, list[str]]:
        partitions = tuple(self._partition(*item) for item in self.cluster.partitions.items())
        for prefix, users in self.users.items():
            if len(users) > 1:
                kind = self.kinds[prefix]
                self.notes.append(
                    f"partitions {' and '.join(users)} describe the same {kind.count} nodes: taken to share them"
                )
        if sum(kind.count for kind in self.kinds.values()) > MOST_NODES:
            raise InvalidInput(f"--like {self.cluster.name}: more than {MOST_NODES} nodes are described")
        self._say_what_is_not_copied()
        shape = Shape(
            kinds=tuple(self.kinds.values()),
            partitions=partitions,
            qos=tuple(self.qos),
            like=self.cluster.name,
            live=False,
            # What is over a limit is refused at once, not left waiting for ever.
            options=(("EnforcePartLimits", "ALL"),),
        )
        return shape, self.notes

    def _partition(self, name: str, partition: Partition) -> PartitionShape:
        groups = partition.nodes or (NodeGroup(gpus=None),)
        if not partition.nodes:
            self._assume(name, "its nodes", "one kind")
        nodes = ",".join(self._kind(name, group).hostlist for group in groups)
        return PartitionShape(name=name, nodes=nodes, options=tuple(self._options(name, partition)))

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
        per_job = [f"gres/gpu={limits.max_gpus}"] if limits.max_gpus else []
        per_job += [f"cpu={limits.max_cpus}"] if limits.max_cpus else []
        if per_job:
            # Slurm limits GPUs and CPUs of a job by a QOS that hangs on the partition.
            qos = f"partition-{name.lower()}"
            self.qos.append(QosShape(name=qos, limits=("Flags=DenyOnLimit",), tres_per_job=",".join(per_job)))
            options.append(("QOS", qos))
        tier, mode = ("1", "REQUEUE") if partition.preemptible else ("10", "OFF")
        return [*options, ("PriorityTier", tier), ("PreemptMode", mode)]

    def _default_partition(self) -> str | None:
        if self.cluster.default_partition:
            return self.cluster.default_partition
        return None if "partition" in self.cluster.dialect.required else next(iter(self.cluster.partitions))

    def _kind(self, partition: str, group: NodeGroup) -> NodeKind:
        alike = group.model_dump_json()
        if group.count is not None and alike in self.shared:
            found = self.shared[alike]
            self.users[found.prefix].append(partition)
            return found
        kind = self._new_kind(partition, group)
        self.kinds[kind.prefix] = kind
        self.users[kind.prefix] = [partition]
        self.shared[alike] = kind
        return kind

    def _new_kind(self, partition: str, group: NodeGroup) -> NodeKind:
        where = f"{partition}, nodes with {group.gpu_type}" if group.gpu_type else partition
        count = group.count or self._assume(where, "their number", NODES)
        gpus = self._assume(where, "GPUs of a node", GPUS) if group.gpu_count is None else group.gpu_count
        cpus = group.cpus or self._assume(where, "CPUs of a node", CPUS_PER_GPU * gpus or CPUS)
        memory = group.memory.mib if group.memory else self._assume(where, "memory (MiB)", MIB_PER_CPU * cpus)
        known = self.cluster.gpu_types.get(group.gpu_type or "", GpuType())
        features = list(group.features)
        if known.constraint and re.fullmatch(r"[\w.:+-]+", known.constraint):
            features.append(known.constraint)
        return NodeKind(
            prefix=self._prefix(partition, group.gpu_type if gpus else None),
            count=count,
            cpus=cpus,
            memory_mib=memory,
            gpus=gpus,
            gpu_type=_gres_type(group.gpu_type, known),
            features=tuple(dict.fromkeys(features)),
        )

    def _prefix(self, partition: str, gpu_type: str | None) -> str:
        words = [re.sub(r"[^a-z0-9]+", "", word.lower()) for word in (partition, gpu_type or "cpu")]
        prefix = stem = "-".join(word for word in words if word) + "-"
        again = 2
        while prefix in self.kinds:
            prefix, again = f"{stem[:-1]}-{again}-", again + 1
        return prefix

    def _assume(self, where: str, what: str, value: int | str) -> int:
        self.notes.append(f"{where}: {what} not stated, {value} assumed")
        return value if isinstance(value, int) else 0

    def _say_what_is_not_copied(self) -> None:
        only_gpu = [name for name, partition in self.cluster.partitions.items() if partition.requires_gpu]
        if only_gpu:
            self.notes.append(f"not enforced here: jobs without a GPU are refused in {', '.join(only_gpu)}")
        if self.cluster.dialect.required:
            self.notes.append(
                f"not enforced here: required options {', '.join(self.cluster.dialect.required)}"
            )


def _gres_type(name: str | None, known: GpuType) -> str | None:
    return known.gres or name
