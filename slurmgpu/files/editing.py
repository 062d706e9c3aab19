"""Values in a YAML file, changed in their places: comments, quotes, order and blank lines stay as they are."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from slurmgpu.errors import InvalidInput
from slurmgpu.files.layered import Key, dotted
from slurmgpu.files.yaml import read_yaml


def with_values(text: str, where: str, values: Mapping[Key, str | int], *, adds_sections: bool = True) -> str:
    """Return the text of a YAML file with these values; a key of a mapping that is there may be new.

    With ``adds_sections`` so may the top-level key above it. A writer of whole documents would indent and wrap by its own
    rules: only the characters of a value are replaced, and the result is read again to see that this and nothing else has
    changed. Of places that are one by an alias, all are to be named, or none is changed.

    Raises:
        InvalidInput: there is no such mapping, or the file is written in a way that this cannot change (a value over
            several lines).
    """
    wanted = _unshared(read_yaml(text, where).data)
    made = text
    try:
        for place, value in values.items():
            here: Any = wanted
            for step in place[:-1]:
                if adds_sections and not isinstance(here.get(step), dict):
                    here[step] = {}
                here = here[step]
            here[place[-1]] = value
        for place, value in values.items():
            made = _with_value(made, place, value, adds_sections)
        same = _unshared(read_yaml(made, where).data) == wanted
    except (InvalidInput, YAMLError, KeyError, IndexError, TypeError, ValueError):
        same = False
    if not same:
        said = ", ".join(f"{dotted(place)}: {value}" for place, value in values.items())
        raise InvalidInput(
            f"{where}: is written in a way that cannot be changed here without changing more (aliases, for example)",
            hint=f"write it by hand: {said}",
        )
    return made


def _unshared(data: Any) -> Any:
    """Return a copy in which aliases are values of their own."""
    if isinstance(data, dict):
        return {key: _unshared(inner) for key, inner in data.items()}
    return [_unshared(inner) for inner in data] if isinstance(data, list) else data


def _with_value(text: str, place: Key, value: str | int, adds_sections: bool) -> str:
    root: Node | None = YAML(pure=True).compose(io.StringIO(text))
    node, key = root, place[-1]
    for step in place[:-1]:
        mapping = _mapping(node)
        if isinstance(step, int):
            node = node.value[step] if isinstance(node, SequenceNode) else None
        else:
            node = None if mapping is None else _inside(mapping, step)
    inner = _mapping(node)
    if not isinstance(key, str) or (inner is None and not adds_sections):
        raise KeyError(key)
    line = f"{key}: {_spelled(value)}"
    if inner is None:
        section, sections = place[0], _mapping(root)
        name = next((one for one, _ in sections.value if one.value == section), None) if sections else None
        if name is not None:  # `resources:` with nothing behind it
            at = text.index(":", name.end_mark.index) + 1
            return f"{text[:at]}\n  {line}{text[at:]}"
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}{section}:\n  {line}\n"
    there = _inside(inner, key)
    if there is None:
        return _with_key(text, inner, line)
    if not isinstance(there, ScalarNode):
        raise KeyError(key)
    quote = there.style if there.style in {'"', "'"} else None
    return text[: there.start_mark.index] + _spelled(value, quote) + text[there.end_mark.index :]


def _with_key(text: str, inner: MappingNode, line: str) -> str:
    """Return the text with one more key in a mapping, behind its last one."""
    if inner.flow_style:
        close = inner.end_mark.index - 1
        behind = text[:close].rstrip()
        comma = "" if behind.endswith(("{", ",")) else ", "
        return f"{behind}{comma}{line}{text[len(behind) : close].rstrip(' ')}{text[close:]}"
    first, last = inner.value[0][0], inner.value[-1][1]
    indent = " " * int(first.start_mark.column)
    if isinstance(last, ScalarNode) and last.style not in {"|", ">"}:
        end = text.find("\n", last.end_mark.index)
        if end < 0:
            return f"{text}\n{indent}{line}\n"
        return f"{text[:end]}\n{indent}{line}{text[end:]}"
    at = first.start_mark.index
    return f"{text[:at]}{line}\n{indent}{text[at:]}"


def _mapping(node: Node | None) -> MappingNode | None:
    return node if isinstance(node, MappingNode) and (node.value or node.flow_style) else None


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
