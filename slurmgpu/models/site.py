"""What else is known of a site: how its Slurm is set up, what software it has, where the figures come from."""

import datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator

from slurmgpu.models.base import Model, Text, Word
from slurmgpu.models.units import Duration

__all__ = ["Reservation", "Retired", "SlurmSetup", "Software", "Source"]


class Source(Model):
    """Where figures come from, and when they were read there: figures typed from documentation age."""

    text: Text
    """The page, file or command."""
    date: datetime.date
    """The day on which it was read (YYYY-MM-DD)."""

    @field_validator("date", mode="before")
    @classmethod
    def _read_date(cls, value: object) -> object:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value


class Retired(Model):
    """The end of a cluster, as its site says."""

    date: datetime.date
    """The day from which no job runs there (YYYY-MM-DD)."""
    successor: Word | None = None
    """The profile of the cluster that follows it; left out, none does."""

    @field_validator("date", mode="before")
    @classmethod
    def _read_date(cls, value: object) -> object:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value


class SlurmSetup(Model):
    """How this Slurm is set up, as far as it decides what happens to a job (slurm.conf(5))."""

    release: Text | None = None
    """Its version, as in `release: 24.11.5`; where it is stated, nodes have no features and generic resources but those
    listed."""
    memory_is_consumable: bool | None = None
    """Whether memory is given out (CR_..._Memory); false: a request only has to fit the node."""
    enforces: tuple[Word, ...] = ()
    """What accounting enforces (AccountingStorageEnforce), as in `enforces: [associations, limits, qos]`."""
    refuses_over_limits: Literal["no", "any", "all"] | None = None
    """Whether a job over a partition's limits is refused (EnforcePartLimits); no: it waits for ever."""
    max_array_size: Annotated[int, Field(ge=1)] | None = None
    """One more than the largest index of a job array (MaxArraySize)."""
    kill_wait: Duration | None = None
    """The time between SIGTERM and SIGKILL at the time limit (KillWait)."""
    requeues: bool | None = None
    """Whether jobs are requeued unless they say otherwise (JobRequeue)."""
    preemption: Text | None = None
    """How jobs are preempted (PreemptType, PreemptMode), as in `preemption: "preempt/qos, REQUEUE"`."""
    private: tuple[Word, ...] = ()
    """What users cannot see of others (PrivateData), as in `private: [jobs, usage]`."""


class Software(Model):
    """What Slurm does not know of the site."""

    module_system: Literal["lmod", "tcl", "none"] | None = None
    """lmod: Lmod; tcl: Environment Modules; none: there are no modules."""
    modules: tuple[Text, ...] = ()
    """Modules that PyTorch jobs may want, as in `modules: [cuda/12.4, pytorch/2.9]`."""
    containers: tuple[Word, ...] = ()
    """Container runtimes on PATH, as in `containers: [apptainer]`."""
    scratch: Text | None = None
    """The folder where runs should go, as in `scratch: /scratch/$USER`."""


class Reservation(Model):
    """Nodes set apart for some time."""

    partition: Word | None = None
    """The partition of its nodes."""
    nodes: Annotated[int, Field(ge=0)] | None = None
    """How many nodes it has."""
    start: Text | None = None
    """When it begins, in the cluster's own time."""
    end: Text | None = None
    """When it ends, in the cluster's own time."""
    accounts: tuple[Word, ...] = ()
    """Who may use it, by account."""
    users: tuple[Word, ...] = ()
    """Who may use it, by user name."""
