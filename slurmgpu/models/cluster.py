"""A cluster: what it offers, its limits by partition, QOS and association, and how it wants to be asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from slurmgpu.models.base import LowerWord, Model, OptionValue, Text, Word
from slurmgpu.models.environment import Environment
from slurmgpu.models.resources import CpuBind
from slurmgpu.models.site import (
    AccountRule,
    Carbon,
    Dialect,
    Reservation,
    Retired,
    SlurmSetup,
    Software,
    Source,
)
from slurmgpu.models.units import Duration, Memory

__all__ = [
    "GENERIC",
    "Association",
    "Billing",
    "Cluster",
    "Discovered",
    "GpuType",
    "Limits",
    "LoginNode",
    "NodeGroup",
    "Partition",
    "QosRule",
    "TimeByNodes",
    "Totals",
    "Unit",
]


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
    """Limits of one job; a limit that is not stated does not exist, or is not known."""

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
    """Its purpose, for people who choose one."""
    limits: Limits = Limits.model_construct()
    """Limits of a job under it, in addition to the partition's."""
    partitions: tuple[Word, ...] = ()
    """The only partitions in which it is legal; none: all."""
    lifts: tuple[Literal["max_time", "max_nodes", "min_nodes"], ...] = ()
    """The partition's limits that do not count under it (the flags PartitionTimeLimit, PartitionMaxNodes and
    PartitionMinNodes of sacctmgr(1))."""
    over_partition_qos: bool = False
    """True if its limits override those of the partition's own QOS (the flag OverPartQOS)."""
    preemptible: bool = False
    """True if its jobs can be preempted; such a QOS is chosen only by name (`--qos`)."""
    by_name: bool = False
    """True if it is chosen only by name, because it is for approved work, or dearer."""
    exclusive: bool = False
    """True if its jobs ask for whole nodes (`--exclusive`)."""
    usage_factor: Annotated[float, Field(ge=0)] | None = None
    """Factor by which the charge of a job is multiplied (UsageFactor); default: 1."""


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
    """Price of an hour of each resource (TRESBillingWeights of slurm.conf(5))."""

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
    """Charge the sum of all prices, or the largest on a node (PriorityFlags=MAX_TRES)."""
    unit: Text = "billing units"
    """Unit of the prices, as in `unit: core hours`."""


class GpuType(Model):
    """A type of GPU as this site names it."""

    memory: Memory | None = None
    """Memory of one GPU, as in `memory: 80G`; a job's `gpu_memory` is compared with it."""
    gres: Word | None = None
    """Its type in Slurm's request, as in `gres: a100`, where that is not the name used here."""
    constraint: Text | None = None
    """The feature that selects it (`--constraint`), as in `constraint: a100_80gb`; left out, the request names the type."""


class Unit(Model):
    """The smallest part of a node that a job gets: requests are rounded up to whole ones."""

    gpus: _Count
    """GPUs of one unit."""
    cpus: _Count | None = None
    """CPUs of one unit: they come with its GPUs. Left out, CPUs do not count for it."""
    memory: Memory | None = None
    """Memory of one unit: it comes with its GPUs. Left out, memory does not count for it."""


class NodeGroup(Model):
    """Nodes of one kind in a partition."""

    count: _Count | None = None
    """Number of nodes; left out, it is not known and not checked."""
    names: Text | None = None
    """Their names, as a host list of Slurm's, as in `names: "n[001-018]"`."""
    gpus: _Least | dict[Word, _Count] | None = 0
    """GPUs in each, or those of each type, as in `gpus: {a100: 2, a30: 1}`; null: it has some, and the number is not stated."""
    gpu_type: Word | None = None
    """Their type: a key of the cluster's `gpu_types`, or Slurm's own word for it."""
    shards: _Count | None = None
    """Shards of GPUs in each (`--gres=shard:1`)."""
    gres: dict[Word, _Least] = Field(default_factory=dict)
    """Other generic resources in each, by name, as in `gres: {nvme: 3500}`; a job's `gres` is held against them."""
    cpus: _Count | None = None
    """CPUs that Slurm counts in each (CPUTot); left out, not known and not checked."""
    threads_per_core: _Count | None = None
    """CPUs of a core: jobs get whole cores, so that CPUs are rounded up to it."""
    memory: Memory | None = None
    """Memory that jobs may have of each, as in `memory: 500G`; left out, not known and not checked."""
    cpus_per_gpu: _Count | None = None
    """The site's share of CPUs for a GPU; left out, the node's CPUs divided by its GPUs."""
    max_cpus_per_gpu: _Count | None = None
    """The most CPUs for a GPU: a job over it is refused, waits for ever, or is billed another GPU."""
    memory_per_gpu: Memory | None = None
    """The site's share of memory for a GPU; left out, the node's memory divided by its GPUs."""
    max_memory_per_gpu: Memory | None = None
    """The most memory for a GPU."""
    unit: Unit | None = None
    """The smallest part of such a node that a job gets and is charged for; left out, a job gets what it asks for."""
    cpu_bind: CpuBind | None = None
    """The CPUs beside each GPU, in the order of the GPUs, as srun's `--cpu-bind` takes them: `cpu_bind: "map_cpu:0,8"`. A job
    with one task per GPU that has whole nodes is bound so; without a list, or by `cpu_bind: none` in the job, it is not."""
    whole_across_nodes: bool = False
    """True if jobs over several nodes must take all GPUs of each."""
    features: tuple[Word, ...] = ()
    """Features of the nodes (`--constraint`), as in `features: [nvlink]`."""

    @model_validator(mode="after")
    def _one_way_to_name_types(self) -> Self:
        if isinstance(self.gpus, dict):
            if self.gpu_type is not None:
                raise ValueError("gpus names the types, and gpu_type another; keep one of the two")
            if not self.gpus:
                raise ValueError("gpus is an empty list of types; write gpus: 0 for nodes without GPUs")
        return self

    @property
    def kinds(self) -> tuple[Self, ...]:
        """The same nodes, once for each type of GPU in them: a job's GPUs are of one type."""
        if not isinstance(self.gpus, dict):
            return (self,)
        total = sum(self.gpus.values())
        shares: dict[str, object] = {}  # of the whole node, through all its GPUs
        if self.cpus and self.cpus_per_gpu is None:
            shares["cpus_per_gpu"] = max(1, self.cpus // total)
        if self.memory and self.memory_per_gpu is None:
            shares["memory_per_gpu"] = Memory(self.memory.mib // total)
        return tuple(
            self.model_copy(update={**shares, "gpus": number, "gpu_type": gpu_type})
            for gpu_type, number in self.gpus.items()
        )

    @property
    def gpu_count(self) -> int | None:
        """GPUs in each, of all types; None: not stated."""
        return sum(self.gpus.values()) if isinstance(self.gpus, dict) else self.gpus


class Partition(Model):
    """A partition: its kinds of node, its limits, who may use it."""

    nodes: tuple[NodeGroup, ...] = ()
    """Its kinds of node; none: not known and not checked."""
    limits: Limits = Limits.model_construct()
    """Limits of one job here."""
    requires_gpu: bool = False
    """True if jobs without a GPU are refused here."""
    preemptible: bool = False
    """True if jobs here can be preempted; such a partition is chosen only by name (`--partition`)."""
    by_name: bool = False
    """True if it is chosen only by name, because it is for short tests, for approved work, or dearer."""
    state: Literal["up", "down", "drain", "inactive"] = "up"
    """up: jobs start; down: they wait; drain, inactive: they are refused."""
    whole_nodes: bool | None = None
    """True if nodes are given whole here (OverSubscribe=EXCLUSIVE); left out, as the dialect says."""
    constraint: Text | None = None
    """Features to add to `--constraint` for jobs here, in addition to the dialect's."""
    segment: _Count | None = None
    """Nodes of a block that jobs on several nodes are kept in (`--segment`), such as the 18 of a GB200 NVL72 rack; left out,
    Slurm's topology plugin decides alone."""
    options: dict[Word, OptionValue] = Field(default_factory=dict)
    """Further sbatch options of jobs here, by their long names, as in `options: {hint: nomultithread}`."""
    account: AccountRule | None = None
    """Names of the accounts that may be charged here; default: as the dialect says."""
    accounts: tuple[LowerWord, ...] = ()
    """The only accounts that may be used here (AllowAccounts); none: all."""
    denied_accounts: tuple[LowerWord, ...] = ()
    """Accounts that may not be used here (DenyAccounts)."""
    groups: tuple[Word, ...] = ()
    """The only Unix groups that may submit here (AllowGroups); none: all."""
    qos: tuple[Word, ...] = ()
    """The only QOS that are legal here (AllowQos); none: all."""
    denied_qos: tuple[Word, ...] = ()
    """QOS that are not legal here (DenyQos)."""
    default_qos: Word | None = None
    """The QOS of a job here that names none, where the site gives each partition its own; the plan names it."""
    own_qos: Word | None = None
    """The QOS whose limits hold for every job here (QoS=); left out, there is none."""
    default_memory_per_cpu: Memory | None = None
    """Memory that a job gets for each CPU if it asks for none (DefMemPerCPU)."""
    default_memory_per_gpu: Memory | None = None
    """Memory that a job gets for each GPU if it asks for none (DefMemPerGPU)."""
    default_cpus_per_gpu: _Count | None = None
    """CPUs that Slurm gives a job for each GPU when it asks for none (DefCpuPerGPU)."""
    billing: Billing | None = None
    """Prices of jobs here; left out, `slurmgpu plan` states GPU-hours alone."""
    source: Source | None = None
    """Where these figures come from, when it is not the profile's source."""

    def takes_account(self, account: str | None) -> bool:
        """Return True if an account may be charged here (AllowAccounts, or DenyAccounts where that is not set)."""
        return account in self.accounts if self.accounts else account not in self.denied_accounts

    def takes_qos(self, qos: str | None) -> bool:
        """Return True if a QOS is legal here (AllowQos, or DenyQos where that is not set)."""
        return qos in self.qos if self.qos else qos not in self.denied_qos

    @property
    def kinds(self) -> tuple[NodeGroup, ...]:
        """Its kinds of node, with one type of GPU each."""
        return tuple(kind for group in self.nodes for kind in group.kinds)


class Cluster(Model):
    """A described cluster: its profile."""

    name: Word
    """The profile's name, as `--cluster` takes it."""
    description: Text | None = None
    """The machine and its owner, in a sentence."""
    based_on: Word | None = None
    """Another profile that this one is laid over: what is written here wins over what is written there."""
    source: Source | None = None
    """Where its figures come from, and how old they are."""
    covers: Literal["all partitions", "GPU partitions", "some partitions"] | None = None
    """The part of the site that it describes, as in `covers: GPU partitions`; left out, not stated."""
    retired: Retired | None = None
    """Date of its end, and its successor; left out, it runs."""
    guessed: dict[Text, Text] = Field(default_factory=dict)
    """Guesses: a key of this profile, and the reason for the guess."""
    hidden: dict[Text, Text] = Field(default_factory=dict)
    """Gaps: a key of this profile that could not be read, and the reason."""
    slurm_name: Word | None = None
    """The cluster's own name in Slurm (ClusterName)."""
    default_partition: Word | None = None
    """The partition that Slurm takes when none is named; the planner prefers it among equals."""
    partitions: dict[Word, Partition] = Field(default_factory=dict)
    """Its partitions by name; none: not known, and nothing is checked."""
    gpu_types: dict[Word, GpuType] = Field(default_factory=dict)
    """Its types of GPU, by the names that jobs use, as in `gpu_types: {a100: {memory: 80G}}`."""
    qos: dict[Word, QosRule] = Field(default_factory=dict)
    """Its QOS by name; none: not known and not checked."""
    associations: tuple[Association, ...] = ()
    """The accounts that the user may charge; none: not known and not checked."""
    user_groups: tuple[Word, ...] = ()
    """The user's Unix groups, which the partitions' `groups` are held against; none: not known and not checked."""
    default_account: LowerWord | None = None
    """The account of a job that names none."""
    licenses: dict[Word, _Least] = Field(default_factory=dict)
    """Licences that jobs can ask for, and how many there are, as in `licenses: {matlab: 20}`."""
    reservations: dict[Word, Reservation] = Field(default_factory=dict)
    """Nodes that were set apart when the profile was written, by the reservation's name."""
    carbon: Carbon | None = None
    """Emissions of its electricity, as in `carbon: {grams_per_kwh: 56, source: {text: "the site's report", date: 2026-11-21}}`;
    left out, reports name no carbon."""
    slurm: SlurmSetup = SlurmSetup.model_construct()
    """The configuration of its Slurm."""
    software: Software = Software.model_construct()
    """Facts about it that Slurm does not know."""
    dialect: Dialect = Dialect.model_construct()
    """The form in which it wants to be asked."""
    environments: dict[Word, Environment] = Field(default_factory=dict)
    """Named environments there, as in `environments: {pytorch: {modules: pytorch/2.9}}`; those of the settings win."""
    default_environment: Word | None = None
    """The environment of a job that names none; not of an exact job, nor of one with a script of its own."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.default_partition and self.partitions and self.default_partition not in self.partitions:
            raise ValueError(
                f"default_partition {self.default_partition!r} is not one of the partitions: {', '.join(self.partitions)}"
            )
        if self.qos:
            self._check_qos()
        return self

    def _check_qos(self) -> None:
        named = {f"partitions.{name}.own_qos": part.own_qos for name, part in self.partitions.items()}
        named |= {
            f"partitions.{name}.default_qos": part.default_qos for name, part in self.partitions.items()
        }
        named["dialect.qos"] = self.dialect.qos
        for place, qos in named.items():
            if qos is not None and qos not in self.qos:
                raise ValueError(f"{place} {qos!r} is not one of the QOS: {', '.join(self.qos)}")

    @property
    def farewell(self) -> str | None:
        """Return a sentence that says that it runs no more jobs; None while it does."""
        if self.retired is None:
            return None
        follows = f"; {self.retired.successor} follows it" if self.retired.successor else ""
        says = f" ({self.retired.source})" if self.retired.source else ""
        return f"cluster {self.name!r} has ended: no job runs there since {self.retired.date}{says}{follows}"

    @property
    def known(self) -> bool:
        """True if any partition is described; otherwise nothing can be checked against limits."""
        return bool(self.partitions)

    @property
    def complete(self) -> bool:
        """True if Slurm itself was asked: what is not listed is not there. A profile that was typed from documentation may
        describe a part of its site, and leave out QOS and features."""
        return self.slurm.release is not None

    @property
    def judges(self) -> bool:
        """True if anything is described that a request could be held against."""
        return bool(self.partitions or self.qos or self.associations)


GENERIC = Cluster.model_construct(
    name="generic", description="A plain Slurm cluster of which nothing is known"
)
"""The cluster to plan on when no profile is chosen."""


@dataclass
class Discovered:
    """A discovered cluster, and what is said beside it."""

    cluster: Cluster
    remarks: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    """Comments, by the key they belong to."""
    calls: int = 0
    seconds: float = 0.0


@dataclass
class LoginNode:
    """Facts that only the login node shows, and the guesses among them."""

    software: Software = field(default_factory=Software)
    guessed: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
