"""A request in numbers, and what can be wrong with one."""

from __future__ import annotations

from typing import Literal, NamedTuple

from slurmgpu.models.units import Duration, Gres, Memory

__all__ = ["SHARED", "About", "Ask", "Clause", "Problem"]

SHARED = frozenset({"shard", "mps"})
"""Generic resources that are parts of GPUs (gres.conf(5))."""


class Ask(NamedTuple):
    """What Slurm is asked for, in numbers per node."""

    partition: str | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_type: str | None = None
    """By the profile's name for it, or by its gres type."""
    gpu_memory: Memory | None = None
    gres: tuple[Gres, ...] = ()
    constraint: str | None = None
    cpus_per_node: int = 1
    """CPUs on each node, at least one for each task there."""
    memory_per_node: int | None = None
    """MiB on each node; 0: all of it; None: not asked for."""
    time: Duration | None = None
    qos: str | None = None
    account: str | None = None
    whole: bool = False
    """Whether the nodes are given whole, whatever is asked of them."""
    detail: str = ""
    """How the CPUs came about, for messages."""


About = Literal[
    "partition", "account", "qos", "time", "nodes", "gpus", "gpu_type", "cpus", "memory", "gres", "constraint"
]
"""What of a request something is about."""


class Clause(NamedTuple):
    """What is wrong with a request, in words that follow a subject, and what of it that is about."""

    about: About
    text: str


class Problem(NamedTuple):
    """Why a request is refused, or would wait for ever: who says so, and what."""

    subject: str
    text: str
    """A clause whose subject is ``subject``."""
    about: About

    def __str__(self) -> str:
        return f"{self.subject} {self.text}"
