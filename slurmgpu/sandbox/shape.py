"""What a sandbox looks like to its users: nodes, partitions, accounts, QOS."""

from __future__ import annotations

from slurmgpu.models.base import Model

__all__ = ["NodeGpus", "NodeKind", "PartitionShape", "QosShape", "Shape", "default_shape"]

ACCOUNTS = ("mygroup", "other")


class NodeGpus(Model):
    """GPUs of one type in a node."""

    count: int
    type: str | None = None

    @property
    def gres(self) -> str:
        """As slurm.conf says them."""
        return ":".join(["gpu", *([self.type] if self.type else []), str(self.count)])


class NodeKind(Model):
    """Nodes of one kind: ``prefix`` and a number from 1 to ``count`` name each."""

    prefix: str
    count: int
    cpus: int
    memory_mib: int
    gpus: tuple[NodeGpus, ...] = ()
    features: tuple[str, ...] = ()
    threads: int = 1
    """CPUs of a core."""
    other_gres: tuple[tuple[str, int], ...] = ()
    """Further generic resources and how many of each."""

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        width = len(str(self.count))
        return [f"{self.prefix}{number:0{width}}" for number in range(1, self.count + 1)]

    @property
    def hostlist(self) -> str:
        """The nodes' names as Slurm abbreviates them."""
        first, last = self.names[0], self.names[-1]
        return first if first == last else f"{self.prefix}[{first[len(self.prefix) :]}-{self.count}]"

    @property
    def gres(self) -> str | None:
        """Its GPUs and other generic resources as slurm.conf says them."""
        others = (f"{name}:{count}" for name, count in self.other_gres)
        return ",".join([*(one.gres for one in self.gpus), *others]) or None


class PartitionShape(Model):
    """A partition: its nodes as a host list, and the rest of its line in slurm.conf."""

    name: str
    nodes: str
    options: tuple[tuple[str, str], ...] = ()


class QosShape(Model):
    """A QOS and its limits, in sacctmgr's words."""

    name: str
    limits: tuple[str, ...] = ()
    tres: tuple[str, ...] = ()
    """Limits that may name GPUs, such as ``MaxTRESPerJob=gres/gpu=4``; set once the controller has made GPUs known."""
    given: bool = True
    """Whether users may use it."""


class Shape(Model):
    """The whole of it. ``live`` nodes have a daemon and run jobs; others are only judged on."""

    kinds: tuple[NodeKind, ...]
    partitions: tuple[PartitionShape, ...]
    accounts: tuple[str, ...] = ACCOUNTS
    """The accounts of the user, the default one first."""
    qos: tuple[QosShape, ...] = ()
    default_qos: str = "normal"
    like: str | None = None
    not_enforced: tuple[str, ...] = ()
    """Rules of the cluster it is like that Slurm does not hold jobs to here."""
    live: bool = True
    options: tuple[tuple[str, str], ...] = ()
    """Further lines of slurm.conf."""

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return [name for kind in self.kinds for name in kind.names]


def default_shape(nodes: int, gpus: int, gpu_type: str | None, cpus: int, memory_mib: int) -> Shape:
    """A small cluster of equal nodes: partitions gpu, debug and preempt, two accounts, three QOS."""
    kind = NodeKind(
        prefix="node",
        count=nodes,
        cpus=cpus,
        memory_mib=memory_mib,
        gpus=(NodeGpus(count=gpus, type=gpu_type),) if gpus else (),
        features=(gpu_type,) if gpu_type else (),
    )
    return Shape(
        kinds=(kind,),
        partitions=(
            PartitionShape(
                name="gpu",
                nodes=kind.hostlist,
                options=(
                    ("Default", "YES"), ("MaxTime", "1-00:00:00"), ("DefaultTime", "01:00:00"),
                    ("PriorityTier", "10"), ("PreemptMode", "OFF"),
                ),
            ),
            PartitionShape(
                name="debug",
                nodes=",".join(kind.names[:2]),
                options=(("MaxTime", "00:30:00"), ("PriorityTier", "10"), ("PreemptMode", "OFF")),
            ),
            PartitionShape(
                name="preempt",
                nodes=kind.hostlist,
                options=(
                    ("MaxTime", "1-00:00:00"), ("DefaultTime", "01:00:00"),
                    ("PriorityTier", "1"), ("PreemptMode", "REQUEUE"),
                ),
            ),
        ),
        qos=(
            QosShape(name="high", limits=("Priority=1000", "MaxJobsPerUser=4")),
            QosShape(
                name="debug",
                limits=("Priority=500", "MaxWall=00:30:00", "MaxJobsPerUser=2"),
                tres=("MaxTRESPerJob=gres/gpu=4",),
            ),
        ),
    )  # fmt: skip
