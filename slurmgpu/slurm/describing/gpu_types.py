"""The cluster's types of GPU: names from Slurm, memory from names and features, or guessed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from slurmgpu.models.cluster import GpuType
from slurmgpu.models.units import Memory
from slurmgpu.slurm.describing.gres import memory_in_name, read_gres, well_known_memory
from slurmgpu.slurm.describing.nodes import Kind

__all__ = ["GpuTypes", "gpu_types_of"]


@dataclass
class GpuTypes:
    """The types, what of them was guessed, and the type of kinds of node whose gres does not say it."""

    types: dict[str, GpuType] = field(default_factory=dict)
    guessed: dict[str, str] = field(default_factory=dict)
    of_kind: dict[Kind, str] = field(default_factory=dict)
    by_constraint: bool = False
    """No GPU has a type in its gres: types are chosen by features."""


def gpu_types_of(kinds: Iterable[Kind]) -> GpuTypes:
    """Types of GPU in these kinds of node.

    One gres type of two sizes, told apart by features (80gb), becomes two types with a constraint. GPUs without
    a type get the name of a well-known model among their nodes' features.
    """
    result = GpuTypes()
    with_gpus = [(kind, read_gres(kind.gres)) for kind in dict.fromkeys(kinds)]
    with_gpus = [(kind, gres) for kind, gres in with_gpus if gres.gpus]
    typed: dict[str, list[Kind]] = {}
    for kind, gres in with_gpus:
        for name in gres.types:
            typed.setdefault(name, []).append(kind)
    for name, group in typed.items():
        _typed(result, name, group)
    untyped = [kind for kind, gres in with_gpus if not gres.types]
    if untyped and not typed:
        for kind in untyped:
            _untyped(result, kind)
    return result


def _typed(result: GpuTypes, name: str, kinds: list[Kind]) -> None:
    named = memory_in_name(name)
    if named is not None:
        result.types[name] = GpuType(memory=Memory(named * 1024))
        return
    # A node with several types does not say which of them its feature is about.
    sizes = {kind: _feature(kind) for kind in kinds if len(read_gres(kind.gres).types) == 1}
    by_size: dict[tuple[str, int], list[Kind]] = {}
    for kind, feature in sizes.items():
        if feature:
            by_size.setdefault(feature, []).append(kind)
    if len({gb for _, gb in by_size}) > 1:
        _split(result, name, by_size)
        return
    if by_size and len(sizes) == len(kinds) and all(sizes.values()):
        found, gb = next(iter(by_size))
        result.types[name] = GpuType(memory=Memory(gb * 1024))
        result.guessed[f"gpu_types.{name}.memory"] = f"its nodes have the feature {found}"
        return
    result.types[name] = _guess(result, name, name)


def _split(result: GpuTypes, name: str, by_size: dict[tuple[str, int], list[Kind]]) -> None:
    """The smallest keeps the plain name, which Slurm fills with any of them."""
    (_, least), *larger = sorted(by_size, key=lambda found: found[1])
    result.types[name] = GpuType(memory=Memory(least * 1024))
    result.guessed[f"gpu_types.{name}.memory"] = "the smallest that a feature of its nodes names"
    for feature, gb in larger:
        if gb == least:
            continue
        split = f"{name}-{gb}"
        result.types[split] = GpuType(memory=Memory(gb * 1024), gres=name, constraint=feature)
        result.guessed[f"gpu_types.{split}"] = f"some nodes with {name} have the feature {feature}"
        result.of_kind |= dict.fromkeys(by_size[feature, gb], split)


def _untyped(result: GpuTypes, kind: Kind) -> None:
    for feature in kind.features:
        if well_known_memory(feature):
            size = _feature(kind)
            gpu_type = GpuType(
                memory=Memory(size[1] * 1024) if size else _guess(result, feature, feature).memory,
                constraint=feature,
            )
            if result.types.setdefault(feature, gpu_type) != gpu_type:
                return
            result.guessed[f"gpu_types.{feature}.constraint"] = (
                "its GPUs have no type in Slurm, and the feature has a model's name"
            )
            result.of_kind[kind] = feature
            result.by_constraint = True
            return


def _guess(result: GpuTypes, key: str, name: str) -> GpuType:
    found = well_known_memory(name)
    if found is None:
        return GpuType()
    gb, others = found
    also = f"; it is also sold with {' or '.join(map(str, others))} GB" if others else ""
    result.guessed[f"gpu_types.{key}.memory"] = f"what is known of this model{also}"
    return GpuType(memory=Memory(gb * 1024))


def _feature(kind: Kind) -> tuple[str, int] | None:
    """The feature that says how large a node's GPUs are."""
    for feature in kind.features:
        gb = memory_in_name(feature)
        if gb is not None:
            return feature, gb
    return None
