"""What has to fit, whichever way it was written; and how its GPUs spread over nodes."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, Memory

__all__ = ["Layout", "Misfit", "Request", "count", "spread"]

# GPUs: above this, spreading over nodes cannot be left to chance on an undescribed cluster.
_ASSUMED_NODE = 8


def count(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Request(NamedTuple):
    """What has to fit, whichever way it was written."""

    gpus: int | None
    """GPUs in all."""
    gpus_per_node: int | None
    nodes: int | None
    gpu_type: str | None = None
    gpu_memory: Memory | None = None
    cpus_per_task: int | None = None
    tasks_per_node: int | None = None
    cpus_per_gpu: int | None = None
    memory: Memory | None = None
    memory_per_gpu: Memory | None = None
    memory_per_cpu: Memory | None = None
    time: Duration | None = None
    partition: str | None = None

    @classmethod
    def of(cls, resources: Resources) -> Request:
        """The request that a job's resources make."""
        return cls(
            gpus=resources.gpus.count if resources.gpus else None,
            gpus_per_node=resources.gpus_per_node.count if resources.gpus_per_node else None,
            nodes=resources.nodes,
            gpu_type=resources.wanted_gpu_type,
            gpu_memory=resources.gpu_memory,
            cpus_per_task=resources.cpus_per_task,
            tasks_per_node=resources.tasks_per_node,
            cpus_per_gpu=resources.cpus_per_gpu,
            memory=resources.memory,
            memory_per_gpu=resources.memory_per_gpu,
            memory_per_cpu=resources.memory_per_cpu,
            time=resources.time,
            partition=resources.partition,
        )

    @property
    def wants_gpus(self) -> bool:
        """Whether any GPU is asked for."""
        return bool(self.gpus or self.gpus_per_node)

    def cpus_on_a_node(self, layout: Layout) -> int:
        """CPUs asked for on each node, as far as they are known before the launcher is; 0: none are."""
        if self.cpus_per_task is not None:
            return self.cpus_per_task * (self.tasks_per_node or 1)
        return (self.cpus_per_gpu or 0) * layout.gpus_per_node

    def memory_on_a_node(self, layout: Layout) -> Memory:
        """Memory asked for on each node; 0: none is, or all of it."""
        per_gpu = self.memory_per_gpu.mib * layout.gpus_per_node if self.memory_per_gpu else 0
        per_cpu = self.memory_per_cpu.mib * self.cpus_on_a_node(layout) if self.memory_per_cpu else 0
        return self.memory or Memory(per_gpu or per_cpu)

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


class Misfit(Exception):
    """Why a request does not fit somewhere."""


def spread(request: Request, gpus_on_a_node: int | None) -> Layout:
    """Split the GPUs evenly over as few nodes as hold them; ``gpus_on_a_node`` None: unknown."""
    if not request.wants_gpus:
        return Layout(request.nodes or 1, 0, "as asked" if request.nodes else "no GPU is asked for: 1 node")
    if request.gpus_per_node is not None:
        if gpus_on_a_node is not None and request.gpus_per_node > gpus_on_a_node:
            raise Misfit(f"has {gpus_on_a_node} GPUs a node, {request.gpus_per_node} are asked for on each")
        return Layout(request.nodes or 1, request.gpus_per_node, "as asked")
    total = request.gpus or 0
    if request.nodes is not None:
        if total % request.nodes:
            raise Misfit(f"cannot split {total} GPUs evenly over {request.nodes} nodes")
        per_node = total // request.nodes
        if gpus_on_a_node is not None and per_node > gpus_on_a_node:
            raise Misfit(
                f"has {gpus_on_a_node} GPUs a node; {count(total, 'GPU')} do not fit on {count(request.nodes, 'node')}"
            )
        return Layout(request.nodes, per_node, f"{total} GPUs over {request.nodes} nodes")
    if gpus_on_a_node is None:
        if total > _ASSUMED_NODE:
            raise Misfit(
                f"has nodes of unknown size, so {total} GPUs cannot be spread; give nodes and gpus_per_node"
            )
        return Layout(
            1, total, "on one node: nothing is known of the nodes; give nodes and gpus_per_node to spread"
        )
    if total <= gpus_on_a_node:
        return Layout(1, total, f"{total} of the {gpus_on_a_node} GPUs of a node")
    per_node = next(share for share in range(gpus_on_a_node, 0, -1) if total % share == 0)
    return Layout(
        total // per_node,
        per_node,
        f"{total} GPUs at {gpus_on_a_node} a node: the fewest nodes with equal shares",
    )
