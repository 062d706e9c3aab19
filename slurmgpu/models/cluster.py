"""What a site offers and how it wants to be asked."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from slurmgpu.models.base import LowerWord, Model, OptionValue, Text, Word
from slurmgpu.models.dialect import AccountRule, Dialect
from slurmgpu.models.environment import Environment
from slurmgpu.models.limits import Association, Billing, Limits, QosRule
from slurmgpu.models.site import Reservation, Retired, SlurmSetup, Software, Source
from slurmgpu.models.units import Memory

__all__ = ["GENERIC", "Cluster", "GpuType", "NodeGroup", "Partition", "Unit"]

_Count = Annotated[int, Field(ge=1)]
_Least = Annotated[int, Field(ge=0)]


class GpuType(Model):
    """A type of GPU as this site names it."""

    memory: Memory | None = None
    """Memory of one GPU."""
    gres: Word | None = None
    """Its type in --gres, where that is not the name used here; 'any' of the type is asked by constraint."""
    constraint: Text | None = None
    """The feature that selects it, where the site selects types by --constraint."""


class Unit(Model):
    """The smallest part of a node that a job gets: requests are rounded up to whole ones."""

    gpus: _Count
    """GPUs of one."""
    cpus: _Count | None = None
    """CPUs of one."""
    memory: Memory | None = None
    """Memory of one."""


class NodeGroup(Model):
    """Nodes of one kind in a partition."""

    count: _Count | None = None
    """How many there are; not stated: unknown, and not checked."""
    names: Text | None = None
    """Their names, as Slurm's host list: n[001-018]."""
    gpus: _Least | dict[Word, _Count] | None = 0
    """GPUs in each, or GPUs of each type: {a100: 2, a30: 1}; null: it has some, and the number is not stated."""
    gpu_type: Word | None = None
    """Their type: a key of the cluster's gpu_types, or a plain gres type."""
    shards: _Count | None = None
    """Shards of GPUs in each (--gres=shard:1)."""
    gres: dict[Word, _Least] = Field(default_factory=dict)
    """Other generic resources in each, by name: {nvme: 3500}."""
    cpus: _Count | None = None
    """CPUs that Slurm counts in each."""
    threads_per_core: _Count | None = None
    """CPUs of a core: jobs get whole cores, so CPUs are rounded up to it."""
    memory: Memory | None = None
    """Memory that jobs may have of each."""
    cpus_per_gpu: _Count | None = None
    """The site's share of CPUs for a GPU, where it is not the node's CPUs through its GPUs."""
    max_cpus_per_gpu: _Count | None = None
    """The most CPUs for a GPU: a job over it is refused, waits for ever, or is billed another GPU."""
    memory_per_gpu: Memory | None = None
    """The site's share of memory for a GPU, where it is not the node's memory through its GPUs."""
    max_memory_per_gpu: Memory | None = None
    """The most memory for a GPU."""
    unit: Unit | None = None
    """The smallest part of such a node that a job gets."""
    whole_across_nodes: bool = False
    """Jobs over several nodes take all GPUs of each."""
    features: tuple[Word, ...] = ()
    """Its features (--constraint)."""

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
    """The kinds of node; none stated: unknown, and not checked."""
    limits: Limits = Limits.model_construct()
    """What one job may have here."""
    requires_gpu: bool = False
    """Jobs without a GPU are refused here."""
    preemptible: bool = False
    """Jobs here can be stopped for others; chosen only by name."""
    by_name: bool = False
    """Chosen only by name: it is for short tests, for approved work, or dearer."""
    state: Literal["up", "down", "drain", "inactive"] = "up"
    """down: jobs wait; drain, inactive: jobs are refused."""
    whole_nodes: bool | None = None
    """Nodes are given whole here (OverSubscribe=EXCLUSIVE); not stated: as the dialect says."""
    constraint: Text | None = None
    """What --constraint holds for jobs here, beside the dialect's."""
    options: dict[Word, OptionValue] = Field(default_factory=dict)
    """Further sbatch options of jobs here, by their long names."""
    account: AccountRule | None = None
    """How the names of accounts look that may be charged here, where that is not the dialect's rule."""
    accounts: tuple[LowerWord, ...] = ()
    """The only accounts that may be used here (AllowAccounts); none stated: all."""
    denied_accounts: tuple[LowerWord, ...] = ()
    """Accounts that may not be used here (DenyAccounts)."""
    groups: tuple[Word, ...] = ()
    """The only Unix groups that may submit here (AllowGroups); none stated: all."""
    qos: tuple[Word, ...] = ()
    """The only QOS that are legal here (AllowQos); none stated: all."""
    denied_qos: tuple[Word, ...] = ()
    """QOS that are not legal here (DenyQos)."""
    own_qos: Word | None = None
    """The QOS whose limits hold for every job here (QoS=)."""
    default_memory_per_cpu: Memory | None = None
    """Memory for each CPU of a job that asks for none (DefMemPerCPU)."""
    default_memory_per_gpu: Memory | None = None
    """Memory for each GPU of a job that asks for none (DefMemPerGPU)."""
    default_cpus_per_gpu: _Count | None = None
    """CPUs for each GPU of a job that asks for none (DefCpuPerGPU)."""
    billing: Billing | None = None
    """What jobs here are charged."""
    source: Source | None = None
    """Where these figures come from, when it is not the profile's source."""

    @property
    def kinds(self) -> tuple[NodeGroup, ...]:
        """Its kinds of node, with one type of GPU each."""
        return tuple(kind for group in self.nodes for kind in group.kinds)


class Cluster(Model):
    """A described cluster: its profile."""

    name: Word
    """The profile's name."""
    description: Text | None = None
    """Which machine, of whom."""
    based_on: Word | None = None
    """Another profile that this one is laid over: what stands here goes before what stands there."""
    source: Source | None = None
    """Where its figures come from."""
    retired: Retired | None = None
    """When its site has ended it, and what follows it; not stated: it runs."""
    guessed: dict[Text, Text] = Field(default_factory=dict)
    """What was guessed and not read: the key in this profile, and why it was guessed so."""
    hidden: dict[Text, Text] = Field(default_factory=dict)
    """What could not be read, and why."""
    slurm_name: Word | None = None
    """The cluster's own name in Slurm (ClusterName)."""
    default_partition: Word | None = None
    """The partition that Slurm takes when none is named."""
    partitions: dict[Word, Partition] = Field(default_factory=dict)
    """Its partitions by name; none: unknown, and nothing is checked."""
    gpu_types: dict[Word, GpuType] = Field(default_factory=dict)
    """Its types of GPU, by the names that jobs use."""
    qos: dict[Word, QosRule] = Field(default_factory=dict)
    """Its QOS by name; none: unknown, and not checked."""
    associations: tuple[Association, ...] = ()
    """The accounts that the user may charge; none: unknown, and not checked."""
    default_account: LowerWord | None = None
    """The account of a job that names none."""
    licenses: dict[Word, _Least] = Field(default_factory=dict)
    """Licences that jobs can ask for, and how many there are."""
    reservations: dict[Word, Reservation] = Field(default_factory=dict)
    """Nodes set apart, when the profile was written."""
    slurm: SlurmSetup = SlurmSetup.model_construct()
    """How its Slurm is set up."""
    software: Software = Software.model_construct()
    """What Slurm does not know of it."""
    dialect: Dialect = Dialect.model_construct()
    """How it wants to be asked."""
    environments: dict[Word, Environment] = Field(default_factory=dict)
    """Named environments there."""
    default_environment: Word | None = None
    """The environment of a job that names none; not of one that stands exactly so, or sets itself up in a script."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.default_partition and self.partitions and self.default_partition not in self.partitions:
            raise ValueError(
                f"default_partition {self.default_partition!r} is none of the partitions: {', '.join(self.partitions)}"
            )
        if self.qos:
            self._check_qos()
        return self

    def _check_qos(self) -> None:
        named = {f"partitions.{name}.own_qos": part.own_qos for name, part in self.partitions.items()}
        named["dialect.qos"] = self.dialect.qos
        for field, qos in named.items():
            if qos is not None and qos not in self.qos:
                raise ValueError(f"{field} {qos!r} is none of the QOS: {', '.join(self.qos)}")

    @property
    def farewell(self) -> str | None:
        """That no job runs there any more, in words; None while it runs."""
        if self.retired is None:
            return None
        follows = f"; {self.retired.successor} follows it" if self.retired.successor else ""
        return f"cluster {self.name!r} has ended: no job runs there since {self.retired.date}{follows}"

    @property
    def known(self) -> bool:
        """Whether any partition is described; otherwise nothing can be checked against limits."""
        return bool(self.partitions)

    @property
    def judges(self) -> bool:
        """Whether anything is described that a request could be held against."""
        return bool(self.partitions or self.qos or self.associations)


GENERIC = Cluster.model_construct(
    name="generic", description="A plain Slurm cluster of which nothing is known"
)
"""What is planned on when no profile is chosen."""
