"""A profile brought up to date with a new discovery, or completed by `slurmgpu init`: what a person wrote stays.

A discovered cluster laid over a documented profile: what Slurm cannot know stays as documented.
"""

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
# Said anew by every discovery.
_ALWAYS_NEW = frozenset({"source"})


@dataclass(frozen=True)
class Change:
    """A key whose value is another now; None: it was, or is, not there."""

    place: KeyPath
    before: Any
    after: Any

    def __str__(self) -> str:
        what, rest = _what(self.place)
        if isinstance(self.before or self.after, list) and isinstance(self.after or self.before, list):
            before, after = self.before or [], self.after or []
            lines = [f"- {flow(one)}" for one in before if one not in after]
            lines += [f"+ {flow(one)}" for one in after if one not in before]
            return "\n".join(f"{what}: {rest} {line}".replace(":  ", ": ") for line in lines)
        if self.before is None:
            said = f"is new: {flow(self.after)}"
        elif self.after is None:
            said = f"is gone (was {flow(self.before)})"
        else:
            said = f"{flow(self.before)} -> {flow(self.after)}"
        return f"{what}: {rest} {said}" if rest else f"{what} {said}"


_SINGULAR = {
    "partitions": "partition",
    "gpu_types": "GPU type",
    "qos": "QOS",
    "licenses": "licence",
    "reservations": "reservation",
}


def _what(place: KeyPath) -> tuple[str, str]:
    """`partition gpu` and `limits.max_time`."""
    if place[0] in _SINGULAR and len(place) > 1:
        return f"{_SINGULAR[place[0]]} {place[1]}", ".".join(place[2:])
    return place[0], ".".join(place[1:])


@dataclass
class Refreshed:
    """The profile's new text, what changed in it, and what was kept though Slurm says otherwise."""

    text: str
    changes: list[Change]
    kept: list[Change]
    """Hand-written values (before), and what Slurm says (after)."""


def refreshed(last: str, mine: str, new: str) -> Refreshed:
    """Bring a profile up to date: ``last`` as discovery wrote it, ``mine`` as it is, ``new`` as discovered now.

    What is in ``mine`` as in ``last`` follows Slurm; what a person changed, added or took out stays so.
    """
    reader = _yaml_editor()
    base, document, now = reader.load(last), reader.load(mine), reader.load(new)
    merge = _Merge()
    merge.forget_what_was_corrected(base, document, now)
    merge.mapping(base, document, now, ())
    if mine == last:
        # Nobody has touched it: with the remarks of today.
        return Refreshed(new, merge.changes, merge.kept)
    return Refreshed(_dumped(reader, document), merge.changes, merge.kept)


def _yaml_editor() -> YAML:
    """A reader and writer of YAML that keeps quotes, comments and long lines as they are."""
    from ruamel.yaml import YAML

    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 1_000_000
    editor.indent(mapping=2, sequence=4, offset=2)
    return editor


_FLOW = re.compile(r"( *)(?:- |[^\s#'\"]+: )*[{\[]")


def _dumped(editor: YAML, document: object) -> str:
    """The document's text, its flow lists and mappings wrapped as discovery wraps them, not as the writer does."""
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


class _Merge:
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.kept: list[Change] = []

    def mapping(self, base: Any, mine: Any, new: Any, place: KeyPath) -> None:
        """Change ``mine`` where it is as in ``base`` and ``new`` is not."""
        for key in dict.fromkeys([*new, *base]):
            before, here, after = (one.get(key, _NOTHING) for one in (base, mine, new))
            where = (*place, str(key))
            if before == after or here == after:
                continue
            if isinstance(here, dict) and isinstance(after, dict):
                self.mapping(before if isinstance(before, dict) else {}, here, after, where)
            elif here == before:
                self._take(mine, new, key, after)
                if where[0] not in _ALWAYS_NEW:
                    self.changes.append(Change(where, _plain(before), _plain(after)))
            elif where[0] not in _ALWAYS_NEW:
                self.kept.append(Change(where, _plain(here), _plain(after)))

    def _take(self, mine: Any, new: Any, key: object, after: object) -> None:
        if after is _NOTHING:
            del mine[key]
            return
        mine[key] = after
        if key in new.ca.items:
            mine.ca.items[key] = new.ca.items[key]

    def forget_what_was_corrected(self, base: Any, mine: Any, new: Any) -> None:
        """What a person has put in a guess's place is no longer a guess."""
        for key in list(new.get("guessed") or {}):
            if _at(base, key) != _at(mine, key):
                for one in (base, mine, new):
                    if isinstance(one.get("guessed"), dict):
                        one["guessed"].pop(key, None)


def _at(data: object, key: str) -> object:
    """The value at a dotted key; names may have dots themselves."""
    if not key:
        return data
    if isinstance(data, dict):
        for name in sorted(data, key=lambda one: -len(str(one))):
            if key == str(name) or key.startswith(f"{name}."):
                return _at(data[name], key[len(str(name)) + 1 :])
    return _NOTHING


def _plain(value: object) -> object:
    """Without the YAML library's own classes."""
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
    """An environment as a profile writes it: what differs from the defaults."""
    return environment.model_dump(mode="json", exclude_defaults=True, exclude_none=True)


def add(data: dict[str, Any], additions: Mapping[str, Any]) -> bool:
    """Add values where there are none, mappings entry by entry, in place; whether anything changed."""
    changed = False
    for key, value in additions.items():
        if key == "environments" and isinstance(data.get(key), dict):
            changed |= add(data[key], value)
        elif key not in data:
            data[key] = value
            changed = True
    return changed


def completed(text: str, additions: Mapping[str, object]) -> str | None:
    """The profile with the additions, its comments and its other lines kept; None: it has them all."""
    editor = _yaml_editor()
    data = editor.load(text)
    return _dumped(editor, data) if add(data, additions) else None


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
