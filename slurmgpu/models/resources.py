"""How much of the cluster a job asks for."""

from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self

from slurmgpu.models.base import Model, Word
from slurmgpu.models.slurm_text import Account, Constraint, PartitionName, Qos, ReservationName
from slurmgpu.models.units import Duration, GpuRequest, Gres, Memory

__all__ = ["Positive", "Resources"]

Positive = Annotated[int, Field(ge=1)]


class Resources(Model):
    """How much of the cluster; what is left out is derived and explained by the planner."""

    gpus: GpuRequest | None = None
    """GPUs in all: 2, or a100:2."""
    gpus_per_node: GpuRequest | None = None
    """GPUs on each node: 4, or a100:4."""
    gpus_per_task: GpuRequest | None = None
    """GPUs of each task, in an exact job."""
    gpu_type: Word | None = None
    """The type of GPU, where the request does not name it."""
    gpu_memory: Memory | None = None
    """The least memory that one GPU must have."""
    nodes: Positive | None = None
    """Nodes."""
    tasks_per_node: Positive | None = None
    """Tasks on each node for the srun launcher; its default is one per GPU."""
    tasks: Positive | None = None
    """Tasks in all, in an exact job."""
    cpus_per_task: Positive | None = None
    """CPUs of each task."""
    cpus_per_gpu: Positive | None = None
    """CPUs for each GPU."""
    memory: Memory | None = None
    """Memory on each node; 0 is all of it."""
    memory_per_cpu: Memory | None = None
    """Memory for each CPU."""
    memory_per_gpu: Memory | None = None
    """Memory for each GPU."""
    time: Duration | None = None
    """The time limit: minutes, or any of Slurm's spellings."""
    partition: PartitionName | None = None
    """The partition; chosen by the planner when not given."""
    account: Account | None = None
    """The account (allocation, project) to charge."""
    qos: Qos | None = None
    """The quality of service."""
    constraint: Constraint | None = None
    """Features that the nodes must have, in Slurm's own words."""
    reservation: ReservationName | None = None
    """A reservation to run in."""
    gres: tuple[Gres, ...] = ()
    """Further generic resources per node: lscratch:100; in an exact job GPUs too."""
    exclusive: bool = False
    """Whole nodes."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for names in (
            ("memory", "memory_per_cpu", "memory_per_gpu"),
            ("cpus_per_task", "cpus_per_gpu"),
        ):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{' and '.join(given)} exclude each other; keep one of them")
        types = {
            request.type
            for request in (self.gpus, self.gpus_per_node)
            if request is not None and request.type is not None
        } | ({self.gpu_type} if self.gpu_type else set())
        if len(types) > 1:
            raise ValueError(f"two types of GPU are asked for ({', '.join(sorted(types))}); keep one")
        if self.gpu_memory is not None and not self.gpu_memory.mib:
            raise ValueError("gpu_memory: 0 is no amount of memory; write such as 40G, or leave it out")
        if self.gpus and self.gpus_per_node:
            per_node, total = self.gpus_per_node.count, self.gpus.count
            if total != per_node * (self.nodes or 1):
                raise ValueError(
                    f"gpus: {total} is not nodes: {self.nodes or 1} x gpus_per_node: {per_node}; leave gpus out"
                )
        return self

    @property
    def wanted_gpu_type(self) -> str | None:
        """The type of GPU, wherever it was written."""
        for request in (self.gpus, self.gpus_per_node):
            if request is not None and request.type is not None:
                return request.type
        return self.gpu_type

    def check_planned(self) -> None:
        """ValueError for what only an exact job may say: the planner writes such options itself."""
        for entry in self.gres:
            if entry.name == "gpu":
                raise ValueError(
                    f"gres: '{entry}' asks for GPUs; write them as gpus or gpus_per_node, or add exact: true"
                )
        for name, instead in (("tasks", "nodes and tasks_per_node"), ("gpus_per_task", "gpus_per_node")):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {getattr(self, name)} is for exact jobs; write {instead}, or add exact: true"
                )

    def check_exact(self) -> None:
        """ValueError for what no option of sbatch says by itself."""
        for name in ("gpu_type", "gpu_memory"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {getattr(self, name)} is no option of sbatch, and an exact job has nothing derived; "
                    "write the type into the request (gpus_per_node: a100:2) or a constraint"
                )
