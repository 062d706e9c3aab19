"""Types of GPU: what a job's name for one means, and how a site selects it."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, GpuType, NodeGroup
from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import GpuRequest

__all__ = [
    "Pin", "as_spelled", "entry_of", "gpu_type_matches", "gres_type", "is_slice", "memory_of", "names_of", "retyped",
    "selectable",
]  # fmt: skip


class Pin(NamedTuple):
    """A type that the request names (None: none is named), and the nodes that can then be handed out."""

    gpu_type: str | None
    groups: tuple[NodeGroup, ...]
    why: str = ""


def retyped(resources: Resources, gpu_type: str | None) -> Resources:
    """The same with another type of GPU (None: of any)."""
    update: dict[str, object] = {"gpu_type": gpu_type}
    for name in ("gpus", "gpus_per_node"):
        request = getattr(resources, name)
        if request is not None:
            update[name] = GpuRequest(request.count)
    return resources.model_copy(update=update)


def as_spelled(cluster: Cluster, resources: Resources) -> Resources:
    """The same with its type of GPU in the cluster's letters: to Slurm, H100 and h100 are two (seen on 22.05)."""
    wanted = resources.wanted_gpu_type
    if wanted is None:
        return resources
    kinds = [kind.gpu_type for partition in cluster.partitions.values() for kind in partition.kinds]
    known = [*cluster.gpu_types, *(one.gres for one in cluster.gpu_types.values()), *kinds]
    same = [name for name in known if name is not None and name.lower() == wanted.lower()]
    return resources if wanted in same or not same else retyped(resources, same[0])


def gpu_type_matches(cluster: Cluster, wanted: str, group_type: str | None) -> bool:
    """Whether a job's name for a type means the type of a group of nodes: by its name, or by its gres type."""
    if group_type is None:
        return False
    known = cluster.gpu_types.get(group_type)
    return wanted == group_type or (known is not None and known.gres == wanted)


def is_slice(cluster: Cluster, group: NodeGroup) -> bool:
    """Whether its GPUs are slices: types that end in a MIG profile's name (1g.10gb), as NVIDIA names them."""
    known = cluster.gpu_types.get(group.gpu_type or "")
    return names_a_slice((known and known.gres) or group.gpu_type or "")


def memory_of(cluster: Cluster, group: NodeGroup) -> int | None:
    """Memory of a GPU there, in MiB; None: not known."""
    known = cluster.gpu_types.get(group.gpu_type or "")
    return known.memory.mib if known and known.memory else None


def names_of(groups: tuple[NodeGroup, ...]) -> list[str]:
    """The types of GPU in some nodes."""
    return sorted({group.gpu_type or "unnamed" for group in groups if group.gpu_count != 0})


def entry_of(
    cluster: Cluster, groups: tuple[NodeGroup, ...], wanted: str | None
) -> tuple[str | None, GpuType | None]:
    """The profile's entry for a type that a job names by the profile's name for it, or by its gres type."""
    if wanted is None or wanted in cluster.gpu_types:
        return wanted, cluster.gpu_types.get(wanted or "")
    here = {group.gpu_type for group in groups if gpu_type_matches(cluster, wanted, group.gpu_type)} & set(
        cluster.gpu_types
    )
    name = next(iter(here)) if len(here) == 1 else None
    return name, cluster.gpu_types.get(name or "")


def gres_type(cluster: Cluster, wanted: str | None) -> str | None:
    """The type as a request names it; None where none is named in the request."""
    if (
        wanted is None
        or cluster.dialect.gpu_type_by == "constraint"
        or cluster.dialect.gpus in ("srun", "none")
    ):
        return None
    known = cluster.gpu_types.get(wanted)
    return wanted if known is None else known.gres or (None if known.constraint else wanted)


def selectable(cluster: Cluster, everywhere: tuple[NodeGroup, ...], wanted: str) -> bool:
    """Whether the site's dialect can say that this type is meant, or need not: there is no other."""
    _, known = entry_of(cluster, everywhere, wanted)
    if gres_type(cluster, wanted) is not None or (known is not None and known.constraint):
        return True
    groups = [group for group in everywhere if group.gpu_count != 0]
    return bool(groups) and all(gpu_type_matches(cluster, wanted, group.gpu_type) for group in groups)
