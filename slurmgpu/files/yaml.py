"""YAML 1.2 on disk -> plain values, each with the line it stands on; and models' errors in those words."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from slurmgpu.errors import InvalidInput

__all__ = ["Key", "Layered", "Origin", "read_file", "read_yaml", "validate"]

Key = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


class Origin(NamedTuple):
    """Where a value was written: a file and line, or a command-line option."""

    where: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.where}:{self.line}" if self.line else self.where


class Layered:
    """Plain values merged from several layers, each remembering where it was written."""

    def __init__(self, data: dict[str, Any], origins: dict[Key, Origin]) -> None:
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

    def put(self, key: Key, value: Any, origin: Origin) -> None:
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
        """The values under one key, as layered values of their own."""
        inside = self.data.get(name)
        origins = {key[1:]: origin for key, origin in self.origins.items() if key[:1] == (name,)}
        return Layered(inside if isinstance(inside, dict) else {}, origins)

    def origin(self, key: Key) -> Origin | None:
        """Where a key was written, or the nearest thing around it."""
        for end in range(len(key), -1, -1):
            if key[:end] in self.origins:
                return self.origins[key[:end]]
        return None

    def _drop(self, key: Key) -> None:
        here: Any = self.data
        for part in key[:-1]:
            here = here.get(part) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here.pop(key[-1], None)


def _holds(data: Any, key: Key) -> bool:
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return data is not None


def _merge(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _merge(below[key], value)
        else:
            below[key] = _copy(value)


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def read_yaml(text: str, where: str) -> Layered:
    """Parse a YAML 1.2 mapping; InvalidInput names file and line of what is wrong.

    YAML 1.2: ``no`` is a word and ``12:30:00`` is text, not 45000.
    """
    # Imported here: a job given by options alone needs no YAML.
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="rt", pure=True)
    loader.allow_duplicate_keys = False
    try:
        node = loader.load(io.StringIO(text))
    except RecursionError:
        raise InvalidInput(f"{where}: is nested too deeply to be read") from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        problem = _yaml_problem(str(error.problem or error.context or "cannot be read as YAML"))
        raise InvalidInput(f"{Origin(where, line)}: {problem}") from None
    except (YAMLError, ValueError) as error:
        raise InvalidInput(f"{where}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if node is None:
        return Layered({}, {(): Origin(where)})
    _check_tag(node, Origin(where, 1))
    if not isinstance(node, CommentedMap):
        raise InvalidInput(f"{where}:1: holds {_kind(node)}, where `key: value` lines are expected")
    layered = Layered({}, {(): Origin(where)})
    try:
        layered.data = _plain(node, (), where, layered.origins)
    except RecursionError:
        raise InvalidInput(f"{where}: is nested too deeply to be read") from None
    return layered


def _yaml_problem(problem: str) -> str:
    """The parser's words for the commonest mistakes, as something that a person can act on."""
    if "duplicate key" in problem:
        name = re.search(r'duplicate key "([^"]*)"', problem)
        return f"the key {name[1] if name else ''!r} stands twice; keep one"
    if "another document" in problem:
        return "a second document begins here (---); keep one"
    if "'\\t'" in problem:
        return "a tab stands where YAML wants spaces; replace it by spaces"
    if "<stream end>" in problem:
        return "the text ends too early: a closing ], } or quote is missing"
    return problem


def _kind(node: Any) -> str:
    return "a list" if isinstance(node, list) else f"the single value {node!r}"


# A few lines of aliases of aliases stand for more values than any memory holds.
_MOST_VALUES = 100_000


def _line(lines: Any, of: str, part: Any) -> int | None:
    """The line of a key or an item; a key that a merge (<<) brings in stands on none of its own."""
    try:
        return int(getattr(lines, of)(part)[0]) + 1
    except (KeyError, TypeError):
        return None if lines.line is None else int(lines.line) + 1


_CORE = "tag:yaml.org,2002:"
_KNOWN_TAGS = {
    f"{_CORE}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
}


def _check_tag(node: Any, origin: Origin) -> None:
    """InvalidInput for a value that is marked as of another kind (!name): nothing here reads such."""
    tag = getattr(getattr(node, "tag", None), "value", None)
    if isinstance(node, bytes):
        tag = f"{_CORE}binary"
    elif isinstance(node, Set):
        tag = f"{_CORE}set"
    if tag is not None and tag not in _KNOWN_TAGS:
        shown = tag.replace(_CORE, "!!")
        raise InvalidInput(
            f"{origin}: the YAML tag {shown} means nothing here; write the value without it, or in quotes"
        )


def _plain(node: Any, key: Key, where: str, origins: dict[Key, Origin]) -> Any:
    if len(origins) > _MOST_VALUES:
        raise InvalidInput(f"{where}: stands for more than {_MOST_VALUES} values; use fewer aliases (*name)")
    _check_tag(node, origins[key])
    lines: Any = getattr(node, "lc", None)  # ruamel's mappings and lists know their lines
    if isinstance(node, dict):
        result: dict[str, Any] = {}
        for name, value in node.items():
            line = _line(lines, "key", name)
            _check_tag(name, Origin(where, line))
            if not isinstance(name, str):
                raise InvalidInput(f"{Origin(where, line)}: the key {name!r} is no text; put it in quotes")
            inside: Key = (*key, str(name))
            origins[inside] = Origin(where, line)
            result[str(name)] = _plain(value, inside, where, origins)
        return result
    if isinstance(node, list):
        items: list[Any] = []
        for index, value in enumerate(node):
            inside = (*key, index)
            origins[inside] = Origin(where, _line(lines, "item", index))
            items.append(_plain(value, inside, where, origins))
        return items
    # ruamel's scalar classes keep their spelling; what follows wants the plain kinds.
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node if node is None else str(node)


def validate(model: type[M], layered: Layered, what: str, wrap: Callable[[Key], Key] = lambda key: key) -> M:
    """Make the model of plain values; InvalidInput names every wrong field with its file and line.

    Values go through JSON, where strict models still read lists as tuples and text as dates. ``wrap`` turns
    a key of the model into the key under which its origin is known.
    """
    _refuse_what_is_no_text(layered, layered.data, (), wrap)
    try:
        return model.model_validate_json(json.dumps(layered.data))
    except ValidationError as error:
        problems = [_problem(model, layered, dict(one), wrap) for one in error.errors(include_url=False)]
    raise InvalidInput(
        "\n".join(dict.fromkeys(problems)), hint=f"`slurmgpu schema {what}` describes every field"
    )


def _refuse_what_is_no_text(layered: Layered, value: Any, key: Key, wrap: Callable[[Key], Key]) -> None:
    """InvalidInput for text that UTF-8 cannot hold: a word of the command line that was in another encoding."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_what_is_no_text(layered, inner, (*key, name), wrap)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_what_is_no_text(layered, inner, (*key, index), wrap)
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            origin = layered.origin(wrap(key))
            place = f"{origin}: " if origin else ""
            name = ".".join(str(part) for part in key)
            raise InvalidInput(
                f"{place}{name}: {value!a} is not UTF-8",
                hint="write it in UTF-8; a terminal with another encoding needs a UTF-8 locale (locale -a lists them)",
            ) from None


def _problem(
    model: type[BaseModel], layered: Layered, error: Mapping[str, Any], wrap: Callable[[Key], Key]
) -> str:
    key = tuple(part for part in error["loc"] if not (isinstance(part, str) and _is_branch(part)))
    origin = layered.origin(wrap(key))
    place = f"{origin}: " if origin else ""
    name = ".".join(str(part) for part in key)
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if error["type"] == "extra_forbidden":
        return f"{place}{name}: {_unknown_key(model, key)}"
    if error["type"] == "missing":
        return f"{place}{name}: is missing"
    if error["type"] == "value_error":
        return f"{place}{name}: {message}" if name else f"{place}{message}"
    shown = _shown(error["input"])
    wanted = _WANTED.get(error["type"])
    if error["type"] == "string_type" and not isinstance(error["input"], (dict, list)):
        return f"{place}{name}: {shown} is no text; put it in quotes"
    return f"{place}{name}: {shown}: {wanted or message[:1].lower() + message[1:]}"


# In YAML's words, where Pydantic speaks of JSON's.
_WANTED = {
    "string_type": "one text is expected here",
    "tuple_type": "a list is expected here, such as [a, b]",
    "list_type": "a list is expected here, such as [a, b]",
    "dict_type": "`key: value` lines are expected here",
    "model_type": "`key: value` lines are expected here",
}


def _shown(value: Any) -> str:
    """A value as YAML writes it, cut to what a message can hold."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_branch(part: str) -> bool:
    """Whether a part of an error's location is the tag of a choice (`<name>`), not a key."""
    return part.startswith("<")


def _unknown_key(model: type[BaseModel], key: Key) -> str:
    import difflib

    valid = _keys_at(model, key[:-1])
    near = difflib.get_close_matches(str(key[-1]), valid, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown key; {guess}valid here: {', '.join(valid)}"


def _keys_at(model: type[BaseModel], key: Key) -> list[str]:
    """The names of the fields of the model that stands at a key."""
    current: type[BaseModel] | None = model
    for part in key:
        if current is None:
            return []
        field_info = current.model_fields.get(str(part))
        if field_info is None:
            continue  # an index, or the name of an entry of a mapping: the model stays
        current = _model_in(field_info.annotation)
    return list(current.model_fields) if current else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found:
            return found
    return None


def read_file(path: Path) -> Layered:
    """Read a YAML file; InvalidInput when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from None
    return read_yaml(text, str(path))
