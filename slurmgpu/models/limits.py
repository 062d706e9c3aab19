"""What a job, a user or an account may have: limits of partitions, QOS and associations."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from slurmgpu.models.base import LowerWord, Model, Text, Word
from slurmgpu.models.units import Duration, Memory

__all__ = ["Association", "Billing", "Limits", "QosRule", "TimeByNodes", "Totals"]

_Count = Annotated[int, Field(ge=1)]
_Least = Annotated[int, Field(ge=0)]


class Totals(Model):
    """The most of each resource that several jobs may hold together; what is not stated is not limited."""

    gpus: _Least | None = None
    """GPUs."""
    gpus_by_type: dict[Word, _Least] = Field(default_factory=dict)
    """GPUs of a type."""
    cpus: _Least | None = None
    """CPUs."""
    memory: Memory | None = None
    """Memory."""
    nodes: _Least | None = None
    """Nodes."""
    jobs: _Least | None = None
    """Running jobs."""


class TimeByNodes(Model):
    """The longest time limit of jobs up to a number of nodes."""

    nodes: _Count
    """Up to this many nodes."""
    max_time: Duration
    """The longest time limit."""


class Limits(Model):
    """What one job may have; what is not stated is not limited, or not known."""

    max_time: Duration | None = None
    """The longest time limit."""
    default_time: Duration | None = None
    """The time limit of a job that names none."""
    max_time_by_nodes: tuple[TimeByNodes, ...] = ()
    """The longest time limit by the number of nodes; the first entry with as many nodes counts."""
    max_node_time: Duration | None = None
    """The most nodes times time limit: 01:30:00 is 90 node-minutes."""
    min_nodes: _Count | None = None
    """The fewest nodes."""
    max_nodes: _Count | None = None
    """The most nodes."""
    min_gpus: _Count | None = None
    """The fewest GPUs, over all its nodes."""
    max_gpus: _Least | None = None
    """The most GPUs, over all its nodes."""
    max_gpus_by_type: dict[Word, _Least] = Field(default_factory=dict)
    """The most GPUs of a type, over all its nodes."""
    max_gpus_per_node: _Least | None = None
    """The most GPUs on a node."""
    max_cpus: _Count | None = None
    """The most CPUs, over all its nodes."""
    max_cpus_per_node: _Count | None = None
    """The most CPUs on a node."""
    max_memory: Memory | None = None
    """The most memory on a node."""
    max_memory_per_cpu: Memory | None = None
    """The most memory for a CPU: Slurm gives a job that asks for more further CPUs."""
    max_memory_in_all: Memory | None = None
    """The most memory, over all its nodes."""
    per_user: Totals = Totals.model_construct()
    """The most that all jobs of a user may hold together."""
    in_all: Totals = Totals.model_construct()
    """The most that all jobs under this limit may hold together."""

    @field_validator("max_time_by_nodes")
    @classmethod
    def _rising(cls, rows: tuple[TimeByNodes, ...]) -> tuple[TimeByNodes, ...]:
        counts = [row.nodes for row in rows]
        if counts != sorted(set(counts)):
            raise ValueError(f"the nodes of its entries must rise, and are {', '.join(map(str, counts))}")
        return rows


class QosRule(Model):
    """A quality of service: its limits, and where it is legal."""

    description: Text | None = None
    """What it is for."""
    limits: Limits = Limits.model_construct()
    """What a job may have under it, beside the partition's limits."""
    partitions: tuple[Word, ...] = ()
    """The only partitions in which it is legal; none stated: all."""
    lifts: tuple[Literal["max_time", "max_nodes", "min_nodes"], ...] = ()
    """The partition's limits that do not count under it (the flags PartitionTimeLimit, PartitionMaxNodes,
    PartitionMinNodes of sacctmgr(1))."""
    over_partition_qos: bool = False
    """Its limits go before those of the partition's own QOS (the flag OverPartQOS)."""
    preemptible: bool = False
    """Its jobs can be stopped for others; chosen only by name."""
    by_name: bool = False
    """Chosen only by name: it is for approved work, or dearer."""
    exclusive: bool = False
    """Its jobs ask for whole nodes (--exclusive)."""
    usage_factor: Annotated[float, Field(ge=0)] | None = None
    """What a job is charged, times this."""


class Association(Model):
    """An account that the user may charge, and with what: one row of `sacctmgr show associations`."""

    account: LowerWord
    """The account."""
    partition: Word | None = None
    """The only partition that it holds for; none stated: all."""
    qos: tuple[Word, ...] = ()
    """The legal QOS; none stated: not known."""
    default_qos: Word | None = None
    """The QOS of a job that names none."""
    limits: Limits = Limits.model_construct()
    """The user's own limits there."""


class Billing(Model):
    """What an hour of each resource is charged (TRESBillingWeights of slurm.conf(5))."""

    gpu: Annotated[float, Field(ge=0)] = 0.0
    """A GPU."""
    gpu_by_type: dict[Word, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """A GPU of a type, where types differ."""
    cpu: Annotated[float, Field(ge=0)] = 0.0
    """A CPU."""
    memory: Annotated[float, Field(ge=0)] = 0.0
    """A GiB of memory."""
    node: Annotated[float, Field(ge=0)] = 0.0
    """A node."""
    combine: Literal["sum", "max"] = "sum"
    """The sum of all, or the largest on a node (PriorityFlags=MAX_TRES)."""
    unit: Text = "billing units"
    """What it is counted in."""
