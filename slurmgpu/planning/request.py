"""A request: GPUs and nodes, whichever way they were written; and in the numbers that Slurm judges."""

from __future__ import annotations

from typing import Literal, NamedTuple

from slurmgpu.amounts import count
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, Gres, Memory

__all__ = ["SHARED", "About", "Ask", "Clause", "Layout", "Misfit", "Problem", "Request", "spread"]


# GPUs: above this, spreading over nodes cannot be left to chance on an undescribed cluster.
_ASSUMED_NODE = 8


class Request(NamedTuple):
    """GPUs and nodes, whichever way they were written."""

    gpus: int | None
    """GPUs in all."""
    gpus_per_node: int | None
    nodes: int | None
    gpu_type: str | None = None

    @classmethod
    def of(cls, resources: Resources) -> Request:
        """Return the request that a job's resources make."""
        return cls(
            gpus=resources.gpus.count if resources.gpus else None,
            gpus_per_node=resources.gpus_per_node.count if resources.gpus_per_node else None,
            nodes=resources.nodes,
            gpu_type=resources.wanted_gpu_type,
        )

    @property
    def wants_gpus(self) -> bool:
        """True if any GPU is asked for."""
        return bool(self.gpus or self.gpus_per_node)

    @property
    def single(self) -> bool:
        """True if its words name one thing: ``1 GPU``, ``1 node x 4 GPUs``."""
        if self.wants_gpus and self.gpus_per_node is None:
            return self.gpus == 1
        return (self.nodes or 1) == 1

    def __str__(self) -> str:
        kind = f"{self.gpu_type} GPU" if self.gpu_type else "GPU"
        if not self.wants_gpus:
            return f"{count(self.nodes or 1, 'node')} without GPUs"
        if self.gpus_per_node is not None:
            return f"{count(self.nodes or 1, 'node')} x {count(self.gpus_per_node, kind)}"
        return count(self.gpus or 0, kind) + (f" on {count(self.nodes, 'node')}" if self.nodes else "")


class Layout(NamedTuple):
    """Nodes and GPUs on each."""

    nodes: int
    gpus_per_node: int
    why: str
    gpus: int | None = None
    """GPUs in all, where nodes get different numbers of them, and ``gpus_per_node`` is the least that can be counted on."""


class Misfit(Exception):
    """Why a request does not fit somewhere."""


def spread(request: Request, gpus_on_a_node: int | None, *, whole: bool = False) -> Layout:
    """Split the GPUs evenly over as few nodes as hold them; ``gpus_on_a_node`` None: unknown.

    ``whole``: several nodes give all their GPUs each, or none. Misfit says why they cannot be split so.
    """
    layout = _spread(request, gpus_on_a_node)
    if whole and layout.nodes > 1 and gpus_on_a_node not in (None, layout.gpus_per_node):
        raise Misfit(
            f"gives jobs over several nodes all {gpus_on_a_node} GPUs of each, "
            f"{layout.gpus_per_node} are asked for"
        )
    return layout


def _spread(request: Request, gpus_on_a_node: int | None) -> Layout:
    if not request.wants_gpus:
        return Layout(request.nodes or 1, 0, "as asked" if request.nodes else "no GPU is asked for: 1 node")
    if gpus_on_a_node == 0:
        raise Misfit("has no GPUs")
    if request.gpus_per_node is not None:
        if gpus_on_a_node is not None and request.gpus_per_node > gpus_on_a_node:
            raise Misfit(f"has {gpus_on_a_node} GPUs a node, {request.gpus_per_node} are asked for on each")
        return Layout(request.nodes or 1, request.gpus_per_node, "as asked")
    total = request.gpus or 0
    if request.nodes is not None:
        if total % request.nodes:
            raise Misfit(f"cannot split {count(total, 'GPU')} evenly over {count(request.nodes, 'node')}")
        per_node = total // request.nodes
        if gpus_on_a_node is not None and per_node > gpus_on_a_node:
            raise Misfit(
                f"has {gpus_on_a_node} GPUs a node; {count(total, 'GPU')} do not fit on {count(request.nodes, 'node')}"
            )
        return Layout(request.nodes, per_node, f"{count(total, 'GPU')} over {count(request.nodes, 'node')}")
    if gpus_on_a_node is None:
        if total > _ASSUMED_NODE:
            raise Misfit(
                f"has nodes of unknown size, so {total} GPUs cannot be spread; give nodes and gpus_per_node"
            )
        return Layout(
            1, total, "on one node: nothing is known of the nodes; give nodes and gpus_per_node to spread"
        )
    if total <= gpus_on_a_node:
        return Layout(1, total, f"{count(total, 'GPU')} fit{'s' if total == 1 else ''} on one node")
    per_node = next(share for share in range(gpus_on_a_node, 0, -1) if total % share == 0)
    return Layout(
        total // per_node,
        per_node,
        f"{total} GPUs at {gpus_on_a_node} a node: the fewest nodes with equal shares",
    )


SHARED = frozenset({"shard", "mps"})
"""Generic resources that are parts of GPUs (gres.conf(5))."""


class Ask(NamedTuple):
    """A request to Slurm, in numbers per node."""

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
    cpus_per_task: int = 1
    cpus_with_each_gpu: int | None = None
    """CPUs that Slurm wants among them for each GPU; None: it does not count so."""
    memory_per_node: int | None = None
    """MiB on each node; 0: all of it; None: not asked for."""
    default_memory: int | None = None
    """MiB that Slurm gives on each node where none is asked for; None: not known."""
    time: Duration | None = None
    qos: str | None = None
    account: str | None = None
    whole: bool = False
    """True if the nodes are given whole, whatever is asked of them."""
    detail: str = ""
    """The derivation of the CPUs, for messages."""


About = Literal[
    "partition", "account", "qos", "time", "nodes", "gpus", "gpu_type", "cpus", "memory", "gres", "constraint",
    "licenses", "refused", "required", "advised",
]  # fmt: skip
"""The part of a request that a remark is about."""


class Clause(NamedTuple):
    """A fault of a request, in words that follow a subject, and the part that it is about."""

    about: About
    text: str


class Problem(NamedTuple):
    """Why a request is refused, or would wait for ever: who says so, and what."""

    subject: str
    text: str
    """A clause whose subject is ``subject``."""
    about: About
    option: str | None = None
    """The option of sbatch that is refused, or missing, where it is one of these."""

    def __str__(self) -> str:
        return f"{self.subject} {self.text}"
