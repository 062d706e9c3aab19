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
    """The most GPUs, of all types."""
    gpus_by_type: dict[Word, _Least] = Field(default_factory=dict)
    """The most GPUs of a type, as in `gpus_by_type: {h100: 4}`."""
    cpus: _Least | None = None
    """The most CPUs."""
    memory: Memory | None = None
    """The most memory, as in `memory: 2T`."""
    nodes: _Least | None = None
    """The most nodes."""
    jobs: _Least | None = None
    """The most jobs that run at a time; 0: none may run."""


class TimeByNodes(Model):
    """The longest time limit of jobs up to a number of nodes."""

    nodes: _Count
    """Up to this many nodes."""
    max_time: Duration
    """The longest time limit of such jobs."""


class Limits(Model):
    """What one job may have; what is not stated is not limited, or not known."""

    max_time: Duration | None = None
    """The longest time limit, as in `max_time: 2-00:00:00`; UNLIMITED is valid."""
    default_time: Duration | None = None
    """The time limit of a job that names none."""
    max_time_by_nodes: tuple[TimeByNodes, ...] = ()
    """The longest time limit by the number of nodes, as in `max_time_by_nodes: [{nodes: 91, max_time: 02:00:00}]`; the
    first entry with as many nodes counts."""
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
    """The most GPUs of a type, over all its nodes, as in `max_gpus_by_type: {h100: 4}`."""
    max_gpus_per_node: _Least | None = None
    """The most GPUs on a node."""
    max_cpus: _Count | None = None
    """The most CPUs, over all its nodes."""
    max_cpus_per_node: _Count | None = None
    """The most CPUs on a node (MaxCPUsPerNode)."""
    max_memory: Memory | None = None
    """The most memory on a node, as in `max_memory: 30000M`."""
    max_memory_per_cpu: Memory | None = None
    """The most memory for a CPU (MaxMemPerCPU): a job that asks for more gets further CPUs from Slurm."""
    max_memory_in_all: Memory | None = None
    """The most memory, over all its nodes."""
    per_user: Totals = Totals.model_construct()
    """The most that all jobs of a user may hold together; no single job can be larger."""
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
    """The only partitions in which it is legal; none: all."""
    lifts: tuple[Literal["max_time", "max_nodes", "min_nodes"], ...] = ()
    """The partition's limits that do not count under it (the flags PartitionTimeLimit, PartitionMaxNodes and
    PartitionMinNodes of sacctmgr(1))."""
    over_partition_qos: bool = False
    """Whether its limits go before those of the partition's own QOS (the flag OverPartQOS)."""
    preemptible: bool = False
    """Whether its jobs can be stopped for others; such a QOS is chosen only by name (`--qos`)."""
    by_name: bool = False
    """Whether it is chosen only by name: it is for approved work, or dearer."""
    exclusive: bool = False
    """Whether its jobs ask for whole nodes (`--exclusive`)."""
    usage_factor: Annotated[float, Field(ge=0)] | None = None
    """What the charge of a job is multiplied by (UsageFactor); left out, 1."""


class Association(Model):
    """An account that the user may charge, and with what: one row of `sacctmgr show associations`."""

    account: LowerWord
    """The account, in lower case."""
    partition: Word | None = None
    """The only partition that it holds for; left out, all."""
    qos: tuple[Word, ...] = ()
    """The QOS that are legal with it; none: not known."""
    default_qos: Word | None = None
    """The QOS of a job that names none."""
    limits: Limits = Limits.model_construct()
    """The user's own limits there."""


class Billing(Model):
    """What an hour of each resource is charged (TRESBillingWeights of slurm.conf(5))."""

    gpu: Annotated[float, Field(ge=0)] = 0.0
    """The price of an hour of a GPU, in `unit`."""
    gpu_by_type: dict[Word, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """The price of an hour of a GPU of a type, where types differ, as in `gpu_by_type: {h100: 100.0, a100: 50.0}`."""
    cpu: Annotated[float, Field(ge=0)] = 0.0
    """The price of an hour of a CPU."""
    memory: Annotated[float, Field(ge=0)] = 0.0
    """The price of an hour of a GiB of memory."""
    node: Annotated[float, Field(ge=0)] = 0.0
    """The price of an hour of a node."""
    combine: Literal["sum", "max"] = "sum"
    """Whether the sum of all counts, or the largest on a node (PriorityFlags=MAX_TRES)."""
    unit: Text = "billing units"
    """What prices are counted in, as in `unit: core hours`."""
