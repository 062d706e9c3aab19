"""Values in a YAML file, changed in their places: comments, quotes, order and blank lines stay as they are."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurmgpu.errors import InvalidInput
from slurmgpu.files.layered import dotted
from slurmgpu.files.yaml import read_yaml

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

__all__ = ["with_values", "with_values_at"]

Place = tuple[str, str]
"""A key below a top-level key: ``("resources", "memory")``."""


def with_values(text: str, where: str, values: Mapping[Place, str | int]) -> str:
    """Return the text of a YAML file with these values; those that are not there yet are added.

    A writer of whole documents would indent and wrap by its own rules: only the characters of a value are replaced, and
    the result is read again to see that this and nothing else has changed.

    Raises:
        InvalidInput: the file is written in a way that this cannot change (an alias, a value over several lines).
    """
    before = read_yaml(text, where).data
    from ruamel.yaml.error import YAMLError

    wanted: dict[str, object] = {
        key: dict(one) if isinstance(one, dict) else one for key, one in before.items()
    }
    for (section, key), value in values.items():
        held = wanted.get(section)
        wanted[section] = {**held, key: value} if isinstance(held, dict) else {key: value}
    made = text
    try:
        for place, value in values.items():
            made = _with_value(made, place, value)
        same = read_yaml(made, where).data == wanted
    except (InvalidInput, YAMLError, ValueError):
        same = False
    if not same:
        said = ", ".join(f"{dotted(place)}: {value}" for place, value in values.items())
        raise InvalidInput(
            f"{where}: is written in a way that cannot be changed here without changing more (aliases, for example)",
            hint=f"write it by hand: {said}",
        )
    return made


def with_values_at(text: str, where: str, values: Mapping[tuple[str | int, ...], str | int]) -> str:
    """Return the text of a YAML file with values at any depth; a key of a mapping that is there may be new.

    Of places that are one by an alias, all are to be named, or none is changed.

    Raises:
        InvalidInput: there is no such mapping or entry, or it cannot be changed without changing more.
    """
    from ruamel.yaml.error import YAMLError

    wanted = _unshared(read_yaml(text, where).data)
    made = text
    try:
        for place, value in values.items():
            here: Any = wanted
            for step in place[:-1]:
                here = here[step]
            here[place[-1]] = value
        for place, value in values.items():
            made = _with_value_at(made, place, value)
        same = _unshared(read_yaml(made, where).data) == wanted
    except (InvalidInput, YAMLError, KeyError, IndexError, TypeError, ValueError):
        same = False
    if not same:
        said = ", ".join(f"{dotted(place)}: {value}" for place, value in values.items())
        raise InvalidInput(
            f"{where}: cannot be changed here without changing more", hint=f"write it by hand: {said}"
        )
    return made


def _with_value_at(text: str, place: tuple[str | int, ...], value: str | int) -> str:
    node = _composed(text)
    for step in place[:-1]:
        node = _step(node, step)
    inner, last = _mapping(node), place[-1]
    if inner is None or not isinstance(last, str):
        raise KeyError(last)
    there = _inside(inner, last)
    held = _scalar(there)
    if held is not None:
        quote = held.style if held.style in {'"', "'"} else None
        return text[: held.start_mark.index] + _spelled(value, quote) + text[held.end_mark.index :]
    if there is not None:
        raise KeyError(last)
    return _with_key(text, inner, f"{last}: {_spelled(value)}")


def _unshared(data: Any) -> Any:
    """Return a copy in which aliases are values of their own."""
    if isinstance(data, dict):
        return {key: _unshared(inner) for key, inner in data.items()}
    return [_unshared(inner) for inner in data] if isinstance(data, list) else data


def _step(node: Node | None, step: str | int) -> Node | None:
    from ruamel.yaml.nodes import SequenceNode

    if isinstance(step, int):
        return node.value[step] if isinstance(node, SequenceNode) else None
    inner = _mapping(node)
    return None if inner is None else _inside(inner, step)


def _with_value(text: str, place: Place, value: str | int) -> str:
    section, key = place
    root = _mapping(_composed(text))
    held = _inside(root, section) if root is not None else None
    inner = _mapping(held)
    if inner is None:
        name = (
            next((one for one, _ in root.value if one.value == section), None) if root is not None else None
        )
        if name is not None:  # `resources:` with nothing behind it
            at = text.index(":", name.end_mark.index) + 1
            return f"{text[:at]}\n  {key}: {_spelled(value)}{text[at:]}"
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}{section}:\n  {key}: {_spelled(value)}\n"
    found = _scalar(_inside(inner, key))
    if found is None:
        return _with_key(text, inner, f"{key}: {_spelled(value)}")
    quote = found.style if found.style in {'"', "'"} else None
    return text[: found.start_mark.index] + _spelled(value, quote) + text[found.end_mark.index :]


def _with_key(text: str, inner: MappingNode, line: str) -> str:
    """Return the text with one more key in a mapping, behind its last one."""
    if inner.flow_style:
        close = inner.end_mark.index - 1
        behind = text[:close].rstrip()
        comma = "" if behind.endswith(("{", ",")) else ", "
        return f"{behind}{comma}{line}{text[len(behind) : close].rstrip(' ')}{text[close:]}"
    first, last = inner.value[0][0], _scalar(inner.value[-1][1])
    indent = " " * int(first.start_mark.column)
    if last is not None and last.style not in {"|", ">"}:
        end = text.find("\n", last.end_mark.index)
        if end < 0:
            return f"{text}\n{indent}{line}\n"
        return f"{text[:end]}\n{indent}{line}{text[end:]}"
    at = first.start_mark.index
    return f"{text[:at]}{line}\n{indent}{text[at:]}"


def _composed(text: str) -> Node | None:
    from ruamel.yaml import YAML

    node: Node | None = YAML(pure=True).compose(io.StringIO(text))
    return node


def _mapping(node: Node | None) -> MappingNode | None:
    from ruamel.yaml.nodes import MappingNode

    return node if isinstance(node, MappingNode) and (node.value or node.flow_style) else None


def _scalar(node: Node | None) -> ScalarNode | None:
    from ruamel.yaml.nodes import ScalarNode

    return node if isinstance(node, ScalarNode) else None


def _inside(mapping: MappingNode, key: str) -> Node | None:
    return next((value for name, value in mapping.value if name.value == key), None)


def _spelled(value: str | int, quote: str | None = None) -> str:
    """Return a value as YAML has it; older readers take 12:30:00 for a number."""
    if isinstance(value, int):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if quote is None and re.fullmatch(r"[A-Za-z_][\w.-]*(?::\d+)?|\d+[A-Za-z][\w.-]*", value, re.ASCII):
        return value
    quote = quote or '"'
    return f"{quote}{value}{quote}"
