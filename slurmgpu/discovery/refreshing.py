"""A profile brought up to date with a new discovery, or completed by `slurmgpu init`: what a person wrote stays."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurmgpu.discovery.writing import flow, wrapped
from slurmgpu.models.environment import Environment

if TYPE_CHECKING:
    from ruamel.yaml import YAML

__all__ = ["Change", "Refreshed", "add", "completed", "environment_data", "refreshed"]

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
