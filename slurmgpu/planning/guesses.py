"""Figures of a profile that were guessed: a request is sized and placed by them, and never refused for them.

Nor is a request refused for a type of GPU where the profile does not state the types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, Limits, NodeGroup, Partition
from slurmgpu.models.gpu_models import well_known
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Memory
from slurmgpu.planning.nodes import gpu_type_matches

__all__ = ["Doubted", "without_guesses"]

_UNSTATED = "the profile does not state the type of these GPUs"


class Doubted(NamedTuple):
    """A cluster without the guessed figures that a request may be over, and what was left out of it."""

    cluster: Cluster
    guesses: dict[str, str]
    """A key of the profile, and why it was guessed so."""

    def only_unstated_types(self) -> bool:
        """Return True if all that was left out is that the type of some GPUs is not stated."""
        return all(why is _UNSTATED for why in self.guesses.values())

    def of(self, partition: str | None) -> str:
        """Return the guesses that count on a partition, in words."""
        return "; ".join(f"{key}: {why}" for key, why in self._on([partition]).items())

    def why(self, partitions: Sequence[str]) -> str:
        """Return why those were guessed that count on any of the partitions, each reason once."""
        return "; ".join(dict.fromkeys(self._on(partitions).values()))

    def _on(self, partitions: Sequence[str | None]) -> dict[str, str]:
        places = tuple(f"partitions.{name}." for name in partitions)
        return {
            key: why
            for key, why in self.guesses.items()
            if not key.startswith("partitions.") or f"{key}.".startswith(places)
        }


def without_guesses(cluster: Cluster, resources: Resources) -> Doubted | None:
    """Return what is known for sure of a cluster, as far as the request's own amounts are held against it.

    None where nothing was guessed that they are held against. GPUs of a type that is not stated may be of the wanted one.
    """
    wanted = None if cluster.complete else resources.wanted_gpu_type
    if not cluster.guessed and wanted is None:
        return None
    left_out: dict[str, str] = {}

    def guessed(*keys: str) -> bool:
        found = [key for key in keys if key in cluster.guessed]
        left_out.update({key: cluster.guessed[key] for key in found})
        return bool(found)

    types = dict(cluster.gpu_types)
    if resources.gpu_memory is not None:
        for name, known in types.items():
            keys = ("gpu_types", f"gpu_types.{name}", f"gpu_types.{name}.memory")
            if known.memory is None or not known.memory < resources.gpu_memory:
                continue
            if _is_sold_with(known.gres or name, resources.gpu_memory) and guessed(*keys):
                types[name] = known.model_copy(update={"memory": resources.gpu_memory})
    partitions = {
        name: _sure_of(name, partition, resources, guessed) for name, partition in cluster.partitions.items()
    }
    if wanted is not None:
        for name, partition in partitions.items():
            partitions[name] = _of_any_type(cluster, name, partition, wanted, left_out)
    qos = {
        name: rule.model_copy(
            update={
                "limits": _sure_of_limits(rule.limits, guessed, f"qos.{name}.limits", "qos", f"qos.{name}")
            }
        )
        for name, rule in cluster.qos.items()
    }
    sure = cluster.model_copy(update={"gpu_types": types, "partitions": partitions, "qos": qos})
    return Doubted(sure, left_out) if left_out else None


def _of_any_type(
    cluster: Cluster, name: str, partition: Partition, wanted: str, left_out: dict[str, str]
) -> Partition:
    """Return the partition with GPUs of the wanted type where it has none such, and some of which nothing is stated."""
    if any(gpu_type_matches(cluster, wanted, kind.gpu_type) for kind in partition.kinds):
        return partition
    nodes = list(partition.nodes)
    for number, group in enumerate(nodes):
        if group.gpus is None and group.gpu_type is None:
            nodes[number] = group.model_copy(update={"gpu_type": wanted})
            left_out[f"partitions.{name}.nodes.{number}.gpu_type"] = _UNSTATED
    return partition.model_copy(update={"nodes": tuple(nodes)})


def _is_sold_with(name: str, memory: Memory) -> bool:
    """Return True if GPUs of a type may have as much memory: no V100 was ever sold with 80 GB."""
    model = well_known(name)
    return model is None or memory.mib <= max(model.memory, *model.other_sizes, 0) * 1024


def _sure_of(
    name: str, partition: Partition, resources: Resources, guessed: Callable[..., bool]
) -> Partition:
    there = f"partitions.{name}"
    nodes = tuple(
        _sure_of_nodes(
            group, resources, guessed, ("partitions", there, f"{there}.nodes"), f"{there}.nodes.{number}"
        )
        for number, group in enumerate(partition.nodes)
    )
    limits = _sure_of_limits(partition.limits, guessed, f"{there}.limits")
    return partition.model_copy(update={"nodes": nodes, "limits": limits})


def _sure_of_limits(limits: Limits, guessed: Callable[..., bool], place: str, *above: str) -> Limits:
    stated = limits.model_fields_set - {"default_time"}
    if stated and guessed(*above, place):
        return Limits.model_construct(default_time=limits.default_time)
    doubted = [field for field in sorted(stated) if guessed(f"{place}.{field}")]
    return limits.model_copy(update={field: Limits.model_fields[field].get_default() for field in doubted})


def _sure_of_nodes(
    group: NodeGroup, resources: Resources, guessed: Callable[..., bool], above: tuple[str, ...], place: str
) -> NodeGroup:
    cpus = resources.cpus_per_task or resources.cpus_per_gpu or resources.tasks_per_node
    memory = resources.memory or resources.memory_per_gpu or resources.memory_per_cpu
    update: dict[str, object] = {}
    if cpus and group.cpus and guessed(*above, f"{place}.cpus"):
        update["cpus"] = None
    if memory and group.memory and guessed(*above, f"{place}.memory"):
        update["memory"] = None
    if (resources.gpus or resources.gpus_per_node) and group.gpus is not None and guessed(f"{place}.gpus"):
        update["gpus"] = None
    return group.model_copy(update=update)
