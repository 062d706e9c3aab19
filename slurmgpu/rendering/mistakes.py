"""What is said of a mistake in a template: its file and line, what is wrong, what is valid there, and the next act."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Mapping
from itertools import groupby

from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError

from slurmgpu.errors import InvalidInput, did_you_mean, nearest
from slurmgpu.rendering.context import VARIABLES

__all__ = ["mistake"]

_VARIABLES = "slurmgpu template variables lists what a template may use"
_SYNTAX = {
    "Missing end of comment tag": 'close it with #}; where bash is meant, write ${#array[@]} as {{ "${#" }}array[@]}',
    "Encountered unknown tag": 'write one of the tags that are named; where bash is meant, write {% as {{ "{%" }}',
    "expected token 'end of print statement'": '{{ ... }} holds one expression; where bash is meant, write {{ as {{ "{{" }}',
}
"""What to do about an error of Jinja's, by the start of its words."""


def mistake(
    error: Exception,
    main: str,
    templates: Mapping[str, str],
    place: Callable[[str], str],
    filters: Collection[str],
) -> InvalidInput:
    """What went wrong while ``main`` was laid out; ``place`` says how a message names a template."""
    frames = [
        (one.filename, one.lineno or 1)
        for one in traceback.extract_tb(error.__traceback__)
        if one.filename in templates
    ]
    # A syntax error knows its place; any other is in the innermost frame that is a template.
    name, line = frames[-1] if frames else (main, 1)
    if isinstance(error, TemplateSyntaxError):
        name, line = error.name or main, error.lineno
    text = "".join(templates[name].splitlines()[line - 1 : line]).strip()
    said, hint = _explained(error, templates, [one for one, _ in frames], text, filters)
    return InvalidInput(f"template {place(name)}:{line}: {said}", hint=hint)


def _explained(
    error: Exception, templates: Mapping[str, str], entered: list[str], text: str, filters: Collection[str]
) -> tuple[str, str]:
    """What is wrong in a line, and the next act."""
    if isinstance(error, TemplateNotFound):
        wanted = str(error.name)
        near = nearest(wanted, templates)
        said = f"includes {wanted!r}, which is not there; {did_you_mean(wanted, templates)}".rstrip("; ")
        return said, f"write {near!r}" if near else "slurmgpu template list shows all that are there"
    if isinstance(error, TemplateSyntaxError):
        return _syntax(str(error.message), filters)
    if isinstance(error, UndefinedError):
        return _undefined(str(error.message), text)
    if isinstance(error, SecurityError):
        return f"{error.message} (templates run in a sandbox)", _VARIABLES
    if isinstance(error, RecursionError):
        return _without_end([name for name, _ in groupby(entered)])
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{kind}{error}", f"correct this line: {text}"


def _syntax(said: str, filters: Collection[str]) -> tuple[str, str]:
    missing = re.match(r"No filter named '(\w+)'", said)
    if missing:
        near = nearest(missing[1], filters)
        hint = f"write | {near}" if near else "Jinja's documentation lists its built-in filters"
        return f"there is no filter {missing[1]!r}; {did_you_mean(missing[1], filters)}".rstrip("; "), hint
    is_open = re.match(r"Unexpected end of template.* needs to be closed is '(\w+)'", said)
    if is_open:
        return f"{{% {is_open[1]} %}} is not closed before the template ends", f"add {{% end{is_open[1]} %}}"
    hints = (hint for start, hint in _SYNTAX.items() if said.startswith(start))
    return said, next(hints, "correct the line; Jinja's documentation explains its syntax")


def _undefined(said: str, text: str) -> tuple[str, str]:
    """A variable, or a part of one, that no job has, or not this one."""
    alone = re.match(r"'(\w+)' is undefined", said)
    if alone:
        parts = [one for one in VARIABLES if one.endswith(f".{alone[1]}")]
        near = parts[0] if parts else nearest(alone[1], VARIABLES)
        guess = f"; did you mean {near!r}?" if near else ""
        return f"there is no variable {alone[1]!r}{guess}", _instead(near)
    part = re.match(r"'(.+)' has no attribute '(\w+)'", said)
    whole = re.search(rf"([A-Za-z_]\w*(?:\.\w+)*)\.{part[2]}\b", text) if part else None
    if part is None or whole is None:
        return said, _VARIABLES
    if part[1] == "None":
        return (
            f"{whole[1]} is none in this job, and has no {part[2]!r}",
            f"put the line between {{% if {whole[1]} %}} and {{% endif %}}",
        )
    valid = [one for one in VARIABLES if one.startswith(f"{whole[1]}.")]
    listed = f"; it has {', '.join(valid)}" if valid else ""
    return f"{whole[1]} has no {part[2]!r}{listed}", _instead(nearest(whole[0], valid))


def _instead(near: str | None) -> str:
    return f"write {near}; {_VARIABLES}" if near else _VARIABLES


def _without_end(entered: list[str]) -> tuple[str, str]:
    """Templates that include each other for ever: the last that was entered, and those since it was before."""
    last = entered[-1] if entered else "it"
    since = entered[:-1][::-1]
    between = since[: since.index(last)][::-1] if last in since else []
    return f"includes itself without end: {' -> '.join([last, *between, last])}", (
        "take one of these includes out; a template cannot include the shipped one that it replaces, but can have its "
        f"lines: slurmgpu template show {last} --shipped"
    )
