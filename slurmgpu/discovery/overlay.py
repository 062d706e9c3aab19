"""A discovered cluster laid over a documented profile: what Slurm cannot know stays as documented."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurmgpu.discovery.writing import plain
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.discovered import Discovered

__all__ = ["likely_profiles", "overlay"]

# Rules of a partition, of nodes in it and of a QOS that stand in a site's documentation only, or that its own submit
# plug-in holds.
_PARTITION_RULES = (
    "requires_gpu", "by_name", "preemptible", "constraint", "options", "account", "whole_nodes", "billing", "default_qos",
)  # fmt: skip
_QOS_RULES = ("description", "by_name", "preemptible", "exclusive")
# Limits that Slurm has for no partition, and those of a QOS that a plug-in may hold instead.
_PARTITION_LIMITS = ("min_gpus", "max_node_time", "max_time_by_nodes")
_QOS_LIMITS = ("max_node_time", "max_time_by_nodes")
_NODE_RULES = (
    "cpus_per_gpu", "max_cpus_per_gpu", "memory_per_gpu", "max_memory_per_gpu", "unit", "whole_across_nodes",
)  # fmt: skip


def overlay(found: Discovered, base: Cluster) -> dict[str, object]:
    """What is written of a discovered cluster that is `based_on` a documented one.

    Guesses give way to what is documented; documented rules that Slurm does not know are taken over into the
    partitions and QOS, which go before the documented ones as a whole; documented partitions that are gone are taken
    away.
    """
    data, documented = plain(found.cluster), plain(base)
    _take_types(data, documented)
    guessed = data.get("guessed", {})
    for key in list(guessed):
        if _drop_if_documented(data, documented, key.split(".")):
            del guessed[key]
    for name, partition in data.get("partitions", {}).items():
        below = documented.get("partitions", {}).get(name, {})
        _take_rules(partition, below, _PARTITION_RULES, _PARTITION_LIMITS)
        if "unit" in below.get("billing", {}):
            partition["billing"].setdefault("unit", below["billing"]["unit"])
        _take_node_rules(partition.get("nodes", []), below.get("nodes", []))
        if partition.get("default_qos", "") not in data.get("qos", {}):
            partition.pop("default_qos", None)
    for name, qos in data.get("qos", {}).items():
        below = documented.get("qos", {}).get(name, {})
        _take_rules(qos, below, _QOS_RULES, _QOS_LIMITS)
        legal = [one for one in below.get("partitions", []) if one in data.get("partitions", {})]
        qos |= {"partitions": legal} if legal else {}
    _keep_what_a_job_needs(data, documented)
    if "partitions" not in found.cluster.hidden and "partitions" in data:
        data["partitions"] |= dict.fromkeys(set(documented.get("partitions", {})) - set(data["partitions"]))
    data.pop("description", None)
    head = {"name": data.pop("name"), "based_on": base.name}
    return head | {key: value for key, value in data.items() if value != {}}


def _take_rules(
    entry: dict[str, Any], documented: Mapping[str, Any], rules: Iterable[str], limits: Iterable[str]
) -> None:
    """Take over what only the documentation says of a partition or a QOS."""
    entry |= {key: documented[key] for key in rules if key in documented and key not in entry}
    said = documented.get("limits", {})
    kept = {key: said[key] for key in limits if key in said and key not in entry.get("limits", {})}
    if kept:
        entry["limits"] = entry.get("limits", {}) | kept


def _keep_what_a_job_needs(data: dict[str, Any], documented: Mapping[str, Any]) -> None:
    """What Slurm wants named comes to what the documentation wants named; a default that is gone is taken away."""
    dialect, said = data.get("dialect", {}), documented.get("dialect", {})
    if "required" in dialect:
        dialect["required"] = list(dict.fromkeys([*said.get("required", []), *dialect["required"]]))
    default = documented.get("default_partition")
    if "partitions" in data and default is not None and default not in data["partitions"]:
        data.setdefault("default_partition", None)
    # A QOS that only the documentation names may be one that the site's submit plug-in translates.
    if "qos" in data and said.get("qos") is not None and said["qos"] not in documented.get("qos", {}):
        data["qos"].setdefault(said["qos"], {})


def _take_types(data: dict[str, Any], documented: Mapping[str, Any]) -> None:
    """Give the discovered nodes the documented names of their types, and these types Slurm's own spelling."""
    discovered, known = data.get("gpu_types", {}), documented.get("gpu_types", {})
    spelled = {name: one.get("gres", name) for name, one in discovered.items()}
    renamed = _rename_types(data, known, spelled)
    for name in [name for name in discovered if name in known or spelled[name].lower() in renamed]:
        del discovered[name]
        guessed = data.get("guessed", {})
        for key in [key for key in guessed if f"{key}.".startswith(f"gpu_types.{name}.")]:
            del guessed[key]
    for name, one in known.items():
        gres = one.get("gres", name)
        actual = [own for own in spelled.values() if own.lower() == gres.lower()]
        if actual and gres not in actual:
            data.setdefault("gpu_types", {})[name] = {"gres": actual[0]}


def _rename_types(data: dict[str, Any], known: Mapping[str, Any], spelled: Mapping[str, str]) -> set[str]:
    """The gres types, in small letters, that have a documented name."""
    by_gres: dict[str, list[tuple[str, str | None]]] = {}
    for name, one in known.items():
        by_gres.setdefault(one.get("gres", name).lower(), []).append((name, one.get("constraint")))
    for partition in data.get("partitions", {}).values():
        for group in partition.get("nodes", []):
            gres = spelled.get(group.get("gpu_type"), group.get("gpu_type") or "")
            for name, constraint in sorted(by_gres.get(gres.lower(), []), key=lambda one: one[1] is None):
                if constraint is None or constraint in group.get("features", []):
                    group["gpu_type"] = name
                    break
    return set(by_gres)


def _drop_if_documented(data: dict[str, object], documented: Mapping[str, object], key: list[str]) -> bool:
    """Take a guessed value out of the data when the documentation has one."""
    here: object = data
    there: object = documented
    for part in key[:-1]:
        here = here.get(part) if isinstance(here, dict) else None
        there = there.get(part) if isinstance(there, dict) else None
    documented_too = isinstance(there, dict) and key[-1] in there
    if documented_too and isinstance(here, dict):
        here.pop(key[-1], None)
    return documented_too


def _take_node_rules(groups: list[dict[str, object]], documented: list[dict[str, object]]) -> None:
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
        named = found.slurm_name and found.slurm_name.lower() in other.name.lower().split("-")
        if named and (share >= 0.5 or not theirs):
            scored.append((1 + share, other.name, f"{found.slurm_name} is in its name"))
        elif len(shared) >= 3 and share >= 0.8:
            scored.append((share, other.name, f"it has the partitions {', '.join(sorted(shared))}"))
    return [(name, why) for _, name, why in sorted(scored, reverse=True)]
