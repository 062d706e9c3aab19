"""What a site offers and how it wants to be asked."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from slurmgpu.models.base import Model, OptionValue, Text, Word
from slurmgpu.models.environment import Environment
from slurmgpu.models.units import Duration, Memory

__all__ = ["Cluster", "Dialect", "GpuType", "Limits", "NodeGroup", "Partition", "Source"]


class Source(Model):
    """Where figures come from, and when they were read there: figures typed from documentation age."""

    text: Text
    """The page, file or command."""
    date: datetime.date
    """The day it was read (YYYY-MM-DD)."""

    @field_validator("date", mode="before")
    @classmethod
    def _read_date(cls, value: object) -> object:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value


class GpuType(Model):
    """A type of GPU as this site names it."""

    memory: Memory | None = None
    """Memory of one GPU."""
    gres: Word | None = None
    """Its type in --gres, where that is not the name used here; 'any' of the type is asked by constraint."""
    constraint: Text | None = None
    """The feature that selects it, where the site selects types by --constraint."""


class NodeGroup(Model):
    """Nodes of one kind in a partition."""

    count: int | None = Field(default=None, ge=1)
    """How many there are; not stated: unknown, and not checked."""
    gpus: Annotated[int, Field(ge=0)] | None = 0
    """GPUs in each; null: it has some, and the number is not stated."""
    gpu_type: Word | None = None
    """Their type: a key of the cluster's gpu_types, or a plain gres type."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs that Slurm counts in each."""
    memory: Memory | None = None
    """Memory that jobs may have of each."""
    features: tuple[Word, ...] = ()
    """Its features (--constraint)."""


class Limits(Model):
    """What one job may have."""

    max_time: Duration | None = None
    """The longest time limit."""
    default_time: Duration | None = None
    """The time limit of a job that names none."""
    max_nodes: int | None = Field(default=None, ge=1)
    """The most nodes."""
    max_gpus: int | None = Field(default=None, ge=1)
    """The most GPUs, over all its nodes."""
    max_cpus: int | None = Field(default=None, ge=1)
    """The most CPUs, over all its nodes."""
    max_memory: Memory | None = None
    """The most memory on a node."""


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
    source: Source | None = None
    """Where these figures come from, when it is not the profile's source."""


class Dialect(Model):
    """How a site wants to be asked; every option can be left out."""

    gpus: Literal["gres", "gpus-per-node", "gpus", "gpus-per-task", "none"] = "gres"
    """The option that asks for GPUs."""
    gpu_type_by: Literal["request", "constraint"] = "request"
    """How a type of GPU is chosen: in the request (gpu:a100:2), or by --constraint."""
    memory: Literal["mem", "mem-per-cpu", "mem-per-gpu", "none"] = "mem"
    """The option that asks for memory."""
    cpus: Literal["cpus-per-task", "cpus-per-gpu", "none"] = "cpus-per-task"
    """The option that asks for CPUs."""
    memory_share: bool = True
    """Ask for a GPU's share of the node's memory when the job names none; false: leave it to the site's default."""
    cpu_share: bool = True
    """Ask for a GPU's share of the node's CPUs when the job names none; false: leave it to the site's default."""
    tasks: bool = True
    """Whether --ntasks-per-node may stand among the options (else only srun gets it)."""
    partition: bool = True
    """Whether a partition is named."""
    required: tuple[Literal["account", "partition", "qos", "time", "constraint", "reservation"], ...] = ()
    """Options without which the site refuses a job."""
    whole_nodes: bool = False
    """Nodes are given whole (--exclusive)."""
    login_shell: bool = False
    """`module` exists only in login shells: the script starts with `bash -l`."""
    address_suffix: Word | None = None
    """What is appended to a host's name for the fast network (`i` at Juelich)."""
    srun_options: tuple[Text, ...] = ()
    """Further options of every srun, one word each."""
    options: dict[Word, OptionValue] = Field(default_factory=dict)
    """Further sbatch options of every job, by their long names."""


class Cluster(Model):
    """A described cluster: its profile."""

    name: Word
    """The profile's name."""
    description: Text | None = None
    """Which machine, of whom."""
    source: Source | None = None
    """Where its figures come from."""
    default_partition: Word | None = None
    """The partition that Slurm takes when none is named."""
    partitions: dict[Word, Partition] = Field(default_factory=dict)
    """Its partitions by name; none: unknown, and nothing is checked."""
    gpu_types: dict[Word, GpuType] = Field(default_factory=dict)
    """Its types of GPU, by the names that jobs use."""
    dialect: Dialect = Dialect.model_construct()
    """How it wants to be asked."""
    environments: dict[Word, Environment] = Field(default_factory=dict)
    """Named environments there."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.default_partition and self.partitions and self.default_partition not in self.partitions:
            raise ValueError(
                f"default_partition {self.default_partition!r} is none of the partitions: {', '.join(self.partitions)}"
            )
        return self

    @property
    def known(self) -> bool:
        """Whether any partition is described; otherwise nothing can be checked against limits."""
        return bool(self.partitions)


GENERIC = Cluster.model_construct(
    name="generic", description="A plain Slurm cluster of which nothing is known"
)
"""What is planned on when no profile is chosen."""
