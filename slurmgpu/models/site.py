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
    """The day it was read (YYYY-MM-DD)."""

    @field_validator("date", mode="before")
    @classmethod
    def _read_date(cls, value: object) -> object:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value


class Retired(Model):
    """The end of a cluster, as its site says."""

    date: datetime.date
    """The day from which no job runs there (YYYY-MM-DD)."""
    successor: Word | None = None
    """The profile of the cluster that follows it."""

    @field_validator("date", mode="before")
    @classmethod
    def _read_date(cls, value: object) -> object:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value


class SlurmSetup(Model):
    """How this Slurm is set up, as far as it decides what happens to a job (slurm.conf(5))."""

    release: Text | None = None
    """Its version."""
    memory_is_consumable: bool | None = None
    """Whether memory is given out (CR_..._Memory); false: a request only has to fit the node."""
    enforces: tuple[Word, ...] = ()
    """What accounting enforces (AccountingStorageEnforce): associations, limits, qos, safe."""
    refuses_over_limits: Literal["no", "any", "all"] | None = None
    """Whether a job over a partition's limits is refused (EnforcePartLimits); no: it waits for ever."""
    max_array_size: Annotated[int, Field(ge=1)] | None = None
    """The largest index of a job array is one less (MaxArraySize)."""
    kill_wait: Duration | None = None
    """The time between SIGTERM and SIGKILL at the time limit (KillWait)."""
    requeues: bool | None = None
    """Whether jobs are requeued unless they say otherwise (JobRequeue)."""
    preemption: Text | None = None
    """How jobs are preempted (PreemptType, PreemptMode)."""
    private: tuple[Word, ...] = ()
    """What users cannot see of others (PrivateData)."""


class Software(Model):
    """What Slurm does not know of the site."""

    module_system: Literal["lmod", "tcl", "none"] | None = None
    """Lmod, Environment Modules, or none."""
    modules: tuple[Text, ...] = ()
    """Modules that PyTorch jobs may want."""
    containers: tuple[Word, ...] = ()
    """Container runtimes."""
    network_interface: Word | None = None
    """The interface between nodes, for gloo (GLOO_SOCKET_IFNAME)."""
    scratch: Text | None = None
    """Where runs should go."""


class Reservation(Model):
    """Nodes set apart for some time."""

    partition: Word | None = None
    """Its partition."""
    nodes: Annotated[int, Field(ge=0)] | None = None
    """How many nodes."""
    start: Text | None = None
    """When it begins, in the cluster's own time."""
    end: Text | None = None
    """When it ends."""
    accounts: tuple[Word, ...] = ()
    """Who may use it, by account."""
    users: tuple[Word, ...] = ()
    """Who may use it, by name."""
