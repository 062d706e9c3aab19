"""Values merged from several layers, each of which remembers where it was written."""

from __future__ import annotations

from typing import Any, NamedTuple

Key = tuple[str | int, ...]
"""The path of a value in nested mappings and lists."""


def dotted(key: Key) -> str:
    """Return a key as messages name it: ``resources.gpus``."""
    return ".".join(map(str, key))


class Origin(NamedTuple):
    """Where a value was written: a file and line, or a command-line option."""

    where: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.where}:{self.line}" if self.line else self.where


class Layered:
    """Plain values merged from several layers, each remembering where it was written."""

    def __init__(self, data: dict[str, object], origins: dict[Key, Origin]) -> None:
        self.data = data
        self.origins = origins

    def overlay(self, other: Layered, exclusive: tuple[frozenset[Key], ...] = ()) -> None:
        """Lay ``other`` over this: mappings merge, anything else replaces.

        Keys of one set in ``exclusive`` say the same in different ways: when ``other`` has one of them, the
        others of that set are dropped from below.
        """
        for group in exclusive:
            if any(_holds(other.data, key) for key in group):
                for key in group:
                    if not _holds(other.data, key):
                        self._drop(key)
        _merge(self.data, other.data)
        self.origins.update(other.origins)

    def put(self, key: Key, value: object, origin: Origin) -> None:
        """Set one value."""
        here = self.data
        for part in key[:-1]:
            following = here.get(str(part))
            if not isinstance(following, dict):
                following = here[str(part)] = {}
            here = following
        here[str(key[-1])] = value
        self.origins[key] = origin

    def part(self, name: str) -> Layered:
        """Return the values under one key, as layered values of their own."""
        inside = self.data.get(name)
        origins = {key[1:]: origin for key, origin in self.origins.items() if key[:1] == (name,)}
        return Layered(inside if isinstance(inside, dict) else {}, origins)

    def origin(self, key: Key) -> Origin | None:
        """Return where a key was written, or the nearest thing around it."""
        for end in range(len(key), -1, -1):
            if key[:end] in self.origins:
                return self.origins[key[:end]]
        return None

    def place(self, key: Key) -> str:
        """Return the beginning of a message about a key: where it was written, and a colon; empty where that is unknown."""
        origin = self.origin(key)
        return f"{origin}: " if origin else ""

    def _drop(self, key: Key) -> None:
        here: object = self.data
        for part in key[:-1]:
            here = here.get(part) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here.pop(key[-1], None)


def _holds(data: object, key: Key) -> bool:
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return data is not None


def _merge(below: dict[str, Any], above: dict[str, object]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _merge(below[key], value)
        else:
            below[key] = _copy(value)


def _copy(value: object) -> object:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value
