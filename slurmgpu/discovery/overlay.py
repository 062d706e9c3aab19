"""A discovered cluster laid over a documented profile: what Slurm cannot know stays as documented."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurmgpu.discovery.building import Discovered
from slurmgpu.discovery.writing import plain
from slurmgpu.models.cluster import Cluster

__all__ = ["likely_profiles", "overlay"]

# Rules of a partition, and of nodes in it, that stand in a site's documentation only.
_PARTITION_RULES = ("requires_gpu", "by_name", "constraint", "options", "account")
_NODE_RULES = (
    "cpus_per_gpu", "max_cpus_per_gpu", "memory_per_gpu", "max_memory_per_gpu", "unit", "whole_across_nodes",
)  # fmt: skip


def overlay(found: Discovered, base: Cluster) -> dict[str, Any]:
    """What is written of a discovered cluster that is `based_on` a documented one.

    Guesses give way to what is documented; documented rules that Slurm does not know are taken over into the
    partitions, which go before the documented ones as a whole; documented partitions that are gone are taken away.
    """
    data, documented = plain(found.cluster), plain(base)
    renamed = _rename_types(data, documented)
    guessed = data.get("guessed", {})
    for key in list(guessed):
        if _drop_if_documented(data, documented, key.split(".")):
            del guessed[key]
    types = data.get("gpu_types", {})
    for name in [name for name in types if name in renamed or name in documented.get("gpu_types", {})]:
        del types[name]
        for key in [key for key in guessed if key.startswith(f"gpu_types.{name}")]:
            del guessed[key]
    for name, partition in data.get("partitions", {}).items():
        below = documented.get("partitions", {}).get(name, {})
        partition |= {key: below[key] for key in _PARTITION_RULES if key in below and key not in partition}
        _take_node_rules(partition.get("nodes", []), below.get("nodes", []))
    if "partitions" not in found.cluster.hidden and "partitions" in data:
        data["partitions"] |= dict.fromkeys(set(documented.get("partitions", {})) - set(data["partitions"]))
    data.pop("description", None)
    empty = [key for key, value in data.items() if value == {}]
    for key in empty:
        del data[key]
    head = {"name": data.pop("name"), "based_on": base.name}
    return head | data


def _rename_types(data: dict[str, Any], documented: Mapping[str, Any]) -> set[str]:
    """Give the discovered nodes the documented names of their types; the gres types that have such a name."""
    by_gres: dict[str, list[tuple[str, str | None]]] = {}
    for name, known in documented.get("gpu_types", {}).items():
        by_gres.setdefault(known.get("gres", name), []).append((name, known.get("constraint")))
    discovered = data.get("gpu_types", {})
    for partition in data.get("partitions", {}).values():
        for group in partition.get("nodes", []):
            gres = discovered.get(group.get("gpu_type"), {}).get("gres", group.get("gpu_type"))
            for name, constraint in sorted(by_gres.get(gres, []), key=lambda one: one[1] is None):
                if constraint is None or constraint in group.get("features", []):
                    group["gpu_type"] = name
                    break
    return {name for name, known in discovered.items() if known.get("gres", name) in by_gres}


def _drop_if_documented(data: dict[str, Any], documented: Mapping[str, Any], key: list[str]) -> bool:
    """Take a guessed value out of the data when the documentation has one."""
    here: Any = data
    there: Any = documented
    for part in key[:-1]:
        here = here.get(part) if isinstance(here, dict) else None
        there = there.get(part) if isinstance(there, dict) else None
    if isinstance(there, dict) and key[-1] in there:
        if isinstance(here, dict):
            here.pop(key[-1], None)
        return True
    return False


def _take_node_rules(groups: list[dict[str, Any]], documented: list[dict[str, Any]]) -> None:
    for group in groups:
        alike = [one for one in documented if one.get("gpu_type") == group.get("gpu_type")]
        alike = [one for one in alike if one.get("gpus") == group.get("gpus")] or alike
        if len(alike) == 1:
            group |= {key: alike[0][key] for key in _NODE_RULES if key in alike[0]}


def likely_profiles(found: Cluster, documented: Iterable[Cluster]) -> list[tuple[str, str]]:
    """Profiles that seem to describe the same cluster, the likeliest first, and why."""
    scored: list[tuple[float, str, str]] = []
    mine = set(found.partitions)
    for other in documented:
        if found.slurm_name and other.slurm_name == found.slurm_name:
            scored.append((2.0, other.name, f"its cluster is called {found.slurm_name} as well"))
            continue
        theirs = set(other.partitions)
        shared = mine & theirs
        share = len(shared) / len(theirs) if theirs else 0.0
        named = bool(found.slurm_name) and str(found.slurm_name).lower() in other.name.lower().split("-")
        if named and (share >= 0.5 or not theirs):
            scored.append((1 + share, other.name, f"{found.slurm_name} is in its name"))
        elif len(shared) >= 3 and share >= 0.8:
            scored.append((share, other.name, f"it has the partitions {', '.join(sorted(shared))}"))
    return [(name, why) for _, name, why in sorted(scored, reverse=True)]
