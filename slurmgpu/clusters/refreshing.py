"""Merging a discovered cluster into a profile: into one that a person has changed since, or over a documented one."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurmgpu.clusters.writing import flow, plain, wrapped
from slurmgpu.models.cluster import Cluster, Discovered
from slurmgpu.models.environment import Environment

if TYPE_CHECKING:
    from ruamel.yaml import YAML

__all__ = [
    "Change",
    "Refreshed",
    "add",
    "completed",
    "environment_data",
    "likely_profiles",
    "overlay",
    "refreshed",
]


KeyPath = tuple[str, ...]
_NOTHING = object()
# Replaced by every discovery.
_ALWAYS_NEW = frozenset({"source"})
_SINGULAR = {
    "partitions": "partition", "gpu_types": "GPU type", "qos": "QOS", "licenses": "licence",
    "reservations": "reservation",
}  # fmt: skip
_FLOW = re.compile(r"( *)(?:- |[^\s#'\"]+: )*[{\[]")

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


@dataclass(frozen=True)
class Change:
    """A key whose value has changed; None: it was, or is, not there."""

    place: KeyPath
    before: Any
    after: Any

    def __str__(self) -> str:
        what, rest = self.place[0], ".".join(self.place[1:])
        if what in _SINGULAR and rest:
            what, rest = f"{_SINGULAR[what]} {self.place[1]}", ".".join(self.place[2:])
        if isinstance(self.before or self.after, list) and isinstance(self.after or self.before, list):
            before, after = self.before or [], self.after or []
            lines = [f"- {flow(one)}" for one in before if one not in after]
            lines += [f"+ {flow(one)}" for one in after if one not in before]
            return "\n".join(f"{what}: {rest} {line}".replace(":  ", ": ") for line in lines)
        if self.before is None:
            change = f"is new: {flow(self.after)}"
        elif self.after is None:
            change = f"is gone (was {flow(self.before)})"
        else:
            change = f"{flow(self.before)} -> {flow(self.after)}"
        return f"{what}: {rest} {change}" if rest else f"{what} {change}"


@dataclass
class Refreshed:
    """A profile's new text, its changes, and the values kept though Slurm has others."""

    text: str
    changes: list[Change]
    kept: list[Change]
    """Hand-written values (before), and Slurm's (after)."""


def refreshed(last: str, mine: str, new: str) -> Refreshed:
    """Bring a profile up to date: ``last`` as discovery wrote it, ``mine`` as it is, ``new`` as discovered now.

    Values that are in ``mine`` as in ``last`` follow Slurm; those that a person changed, added or removed stay so.
    """
    reader = _yaml_editor()
    base, document, now = reader.load(last), reader.load(mine), reader.load(new)
    # A value that a person has put in a guess's place is no longer a guess.
    for key in list(now.get("guessed") or {}):
        if _value_at(base, key) != _value_at(document, key):
            for one in (base, document, now):
                if isinstance(one.get("guessed"), dict):
                    one["guessed"].pop(key, None)
    result = Refreshed("", [], [])
    _merge(base, document, now, (), result)
    # Nobody has touched it: with the remarks of today.
    result.text = new if mine == last else _dumped(reader, document)
    return result


def _merge(base: Any, mine: Any, new: Any, place: KeyPath, result: Refreshed) -> None:
    """Change ``mine`` where it is as in ``base`` and ``new`` is not."""
    for key in dict.fromkeys([*new, *base]):
        before, here, after = (one.get(key, _NOTHING) for one in (base, mine, new))
        where = (*place, str(key))
        if before == after or here == after:
            continue
        if isinstance(here, dict) and isinstance(after, dict):
            _merge(before if isinstance(before, dict) else {}, here, after, where, result)
            continue
        if here == before and after is _NOTHING:
            del mine[key]
        elif here == before:
            mine[key] = after
            if key in new.ca.items:
                mine.ca.items[key] = new.ca.items[key]
        if where[0] not in _ALWAYS_NEW:
            changes = result.changes if here == before else result.kept
            changes.append(Change(where, _plain(here), _plain(after)))


def _yaml_editor() -> YAML:
    """Return a reader and writer of YAML that keeps quotes, comments and long lines as they are."""
    from ruamel.yaml import YAML

    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 1_000_000
    editor.indent(mapping=2, sequence=4, offset=2)
    return editor


def _dumped(editor: YAML, document: object) -> str:
    """Return the document's text, with flow lists and mappings wrapped as discovery wraps them."""
    stream = io.StringIO()
    editor.dump(document, stream)
    lines = []
    for line in stream.getvalue().split("\n"):
        match = _FLOW.match(line)
        if match:
            code, mark, comment = (
                line.rpartition(" # ") if "}  #" in line or "} #" in line else (line, "", "")
            )
            line = wrapped(code.rstrip(), len(match[1])) + (f" # {comment}" if mark else "")
        lines.append(line)
    return "\n".join(lines)


def _value_at(data: object, key: str) -> object:
    """Return the value at a dotted key; names may have dots themselves."""
    if not key:
        return data
    if isinstance(data, dict):
        for name in sorted(data, key=lambda one: -len(str(one))):
            if key == str(name) or key.startswith(f"{name}."):
                return _value_at(data[name], key[len(str(name)) + 1 :])
    return _NOTHING


def _plain(value: object) -> object:
    """Return a value without the YAML library's own classes."""
    if value is _NOTHING or value is None:
        return None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def environment_data(environment: Environment) -> dict[str, object]:
    """Return an environment as a profile writes it, without the defaults."""
    return environment.model_dump(mode="json", exclude_defaults=True, exclude_none=True)


def add(data: dict[str, Any], additions: Mapping[str, Any]) -> bool:
    """Add values where there are none, mappings entry by entry, in place; return True if anything changed."""
    changed = False
    for key, value in additions.items():
        if key == "environments" and isinstance(data.get(key), dict):
            changed |= add(data[key], value)
        elif key not in data:
            data[key] = value
            changed = True
    return changed


def completed(text: str, additions: Mapping[str, object]) -> str | None:
    """Return the profile with the additions, its comments and its other lines kept; None: it has them all."""
    editor = _yaml_editor()
    data = editor.load(text)
    return _dumped(editor, data) if add(data, additions) else None


def overlay(found: Discovered, base: Cluster) -> dict[str, object]:
    """Return the profile of a discovered cluster that is `based_on` a documented one.

    Guesses give way to documented values; documented rules that Slurm does not know are taken over into the
    partitions and QOS, which go before the documented ones as a whole; documented partitions that are gone are taken
    away.
    """
    data, documented = plain(found.cluster), plain(base)
    _take_types(data, documented)
    guessed = data.get("guessed", {})
    for key in list(guessed):
        *parents, last = key.split(".")
        here: object = data
        there: object = documented
        for part in parents:
            here = here.get(part) if isinstance(here, dict) else None
            there = there.get(part) if isinstance(there, dict) else None
        if isinstance(there, dict) and last in there:
            del guessed[key]
            if isinstance(here, dict):
                here.pop(last, None)
    for name, partition in data.get("partitions", {}).items():
        below = documented.get("partitions", {}).get(name, {})
        _take_rules(partition, below, _PARTITION_RULES, _PARTITION_LIMITS)
        if "unit" in below.get("billing", {}):
            partition["billing"].setdefault("unit", below["billing"]["unit"])
        for group in partition.get("nodes", []):
            alike = [one for one in below.get("nodes", []) if one.get("gpu_type") == group.get("gpu_type")]
            alike = [one for one in alike if one.get("gpus") == group.get("gpus")] or alike
            if len(alike) == 1:
                group |= {key: alike[0][key] for key in _NODE_RULES if key in alike[0]}
        if partition.get("default_qos", "") not in data.get("qos", {}):
            partition.pop("default_qos", None)
    for name, qos in data.get("qos", {}).items():
        below = documented.get("qos", {}).get(name, {})
        _take_rules(qos, below, _QOS_RULES, _QOS_LIMITS)
        legal = [one for one in below.get("partitions", []) if one in data.get("partitions", {})]
        qos |= {"partitions": legal} if legal else {}
    # Options that Slurm requires come to those that the documentation requires; a default that is gone is taken away.
    dialect, documented_dialect = data.get("dialect", {}), documented.get("dialect", {})
    if "required" in dialect:
        required = [*documented_dialect.get("required", []), *dialect["required"]]
        dialect["required"] = list(dict.fromkeys(required))
    default = documented.get("default_partition")
    if "partitions" in data and default is not None and default not in data["partitions"]:
        data.setdefault("default_partition", None)
    # A QOS that only the documentation names may be one that the site's submit plug-in translates.
    default_qos = documented_dialect.get("qos")
    if "qos" in data and default_qos is not None and default_qos not in documented.get("qos", {}):
        data["qos"].setdefault(default_qos, {})
    if "partitions" not in found.cluster.hidden and "partitions" in data:
        data["partitions"] |= dict.fromkeys(set(documented.get("partitions", {})) - set(data["partitions"]))
    data.pop("description", None)
    head = {"name": data.pop("name"), "based_on": base.name}
    return head | {key: value for key, value in data.items() if value != {}}


def _take_rules(
    entry: dict[str, Any], documented: Mapping[str, Any], rules: Iterable[str], limits: Iterable[str]
) -> None:
    """Take over the rules and limits of a partition or a QOS that only the documentation has."""
    entry |= {key: documented[key] for key in rules if key in documented and key not in entry}
    own, other = entry.get("limits", {}), documented.get("limits", {})
    kept = {key: other[key] for key in limits if key in other and key not in own}
    if kept:
        entry["limits"] = own | kept


def _take_types(data: dict[str, Any], documented: Mapping[str, Any]) -> None:
    """Give the discovered nodes the documented names of their types, and these types Slurm's own spelling."""
    discovered, known = data.get("gpu_types", {}), documented.get("gpu_types", {})
    spelled = {name: one.get("gres", name) for name, one in discovered.items()}
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
    for name in [name for name in discovered if name in known or spelled[name].lower() in by_gres]:
        del discovered[name]
        guessed = data.get("guessed", {})
        for key in [key for key in guessed if f"{key}.".startswith(f"gpu_types.{name}.")]:
            del guessed[key]
    for name, one in known.items():
        gres = one.get("gres", name)
        actual = [own for own in spelled.values() if own.lower() == gres.lower()]
        if actual and gres not in actual:
            data.setdefault("gpu_types", {})[name] = {"gres": actual[0]}


def likely_profiles(found: Cluster, documented: Iterable[Cluster]) -> list[tuple[str, str]]:
    """Return the profiles that seem to describe the same cluster, the likeliest first, and why."""
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
