"""A command as words: what a shell would make of a line, what only a shell would read, and how it is launched."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from slurmgpu.models.base import LAUNCHERS, Hinted, Model, OneOf, Words, one_line

__all__ = [
    "LAUNCHER",
    "OPERATOR",
    "VARIABLE",
    "CommandSchema",
    "Launch",
    "check_words",
    "shell_syntax",
    "to_words",
]


OPERATOR = r"(?:\|\|?|\|&|&&?|;|<<?|&>{1,2}|\d?>{1,2}|\d?>&\d)\Z"
"""A whole word that a shell takes for a pipe, a redirection or an end of a command."""
VARIABLE = r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})"
"""``$NAME`` or ``${NAME}``."""

_BRACES = r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}"
_ASSIGNMENT = r"[A-Za-z_][A-Za-z0-9_]*=\S*(?=\s)"


def shell_syntax(line: str) -> str | None:
    """Return the first thing in a command line that only a shell would read, outside quotes; None: it is plain words."""
    found = re.match(_ASSIGNMENT, line)
    if found:
        return found[0]
    quote, at, begins = "", 0, True
    while at < len(line):
        sign = line[at]
        if quote == "'":
            quote = "" if sign == "'" else quote
        elif sign == "\\":
            at += 1
        elif sign == '"':
            quote = "" if quote else sign
        elif sign in "$`":
            variable = re.match(VARIABLE, line[at:])
            if variable or line[at : at + 2] in {"$(", "${"} or sign == "`":
                return variable[0] if variable else line[at : at + 2]
        elif not quote:
            if sign == "'":
                quote = sign
            elif (special := _special(line, at, begins)) is not None:
                return special
        begins = not quote and sign.isspace()
        at += 1
    return None


def _special(line: str, at: int, begins: bool) -> str | None:
    """Return what is at a place outside quotes, if a shell reads more in it than a letter."""
    operator = re.compile(r"\d?>&\d|&>{1,2}|\|\||\|&|&&|<<|>>|[|&;<>()]").match(line, at)
    if operator:
        return operator[0]
    if line[at] in "*?" or (begins and line[at] in "~#"):
        return line[at]
    braces = re.match(_BRACES, line[at:])
    return braces[0] if braces else None


def to_words(value: Any) -> Any:
    """Return a command's words from what a file may hold: a list of them, numbers too, or one line without shell syntax."""
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, (list, tuple)):
        # Numbers arrive as they were spelled, where a file is read (slurmgpu/files/yaml.py).
        return tuple(
            str(word).lower()
            if isinstance(word, bool)
            else str(word)
            if isinstance(word, (int, float))
            else word
            for word in value
        )
    return value


def _split(text: str) -> tuple[str, ...]:
    line = text.replace("\\\n", " ").strip()
    if "\n" in line:
        raise Hinted(
            f"has {line.count(chr(10)) + 1} lines, and a command is one",
            hint="write the lines under script: | instead of command:",
        )
    sign = shell_syntax(line)
    if sign is not None and re.match(_ASSIGNMENT, line):
        name, _, value = sign.partition("=")
        raise Hinted(
            f"{line!r} begins with {sign!r}, which only a shell reads, and no shell reads a command",
            hint=f"write it under variables: {{{name}: {value!r}}}, and the command without it",
        )
    if sign is not None:
        raise Hinted(
            f"{line!r} has {sign!r}, which only a shell reads, and no shell reads a command",
            hint=f"write it as lines under script: |, or as command: [bash, -c, {shlex.quote(line)}]",
        )
    try:
        return tuple(shlex.split(line))
    except ValueError:
        raise Hinted(
            f"{line!r} has a quote that is not closed",
            hint='close it, or write the words as a list: [python, train.py, --name, "it\'s"]',
        ) from None


def check_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """ValueError for a command that is empty, or has a word that no line of a script can carry."""
    if not words or not words[0].strip():
        raise ValueError("is empty; write the command word by word, such as [python, train.py, --lr, '1e-3']")
    for number, word in enumerate(words, start=1):
        try:
            one_line(word)
        except ValueError as error:
            if "\n" in word.strip():
                found = str(error).partition(";")[0]
                raise Hinted(
                    f"word {number} {found}, and a command is one line",
                    hint="write the lines under script: | in a job file, or put them into a file: -- bash FILE.sh",
                ) from None
            raise ValueError(f"word {number} {error}") from None
    return words


class CommandSchema:
    """JSON Schema of a command: a line, or its words."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        words = {"type": "array", "items": {"type": ["string", "number", "boolean"]}}
        return {"anyOf": [{"type": "string"}, words, {"type": "null"}]}


LAUNCHER = OneOf(LAUNCHERS, "auto")
"""The launchers that a job may name."""


class Launch(Model):
    """The start of the command's processes; in a file the launcher's name alone is enough."""

    launcher: Annotated[str, LAUNCHER] = "auto"
    """torchrun: on each node one agent starts a process per GPU; accelerate, deepspeed: the same with their settings; srun:
    one task per GPU; mpi: the same for MPI programs; mpirun: MPI's own launcher; ray: a Ray cluster over the nodes, and
    the command as its driver; plain: the command runs once; auto: what the command and its script need."""
    srun_options: Words = ()
    """Further options of srun, one word each, as in `srun_options: [--mpi=none]`; they follow the cluster's and the
    environment's."""
