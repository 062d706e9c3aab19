"""The three encoders: a directive's value, a shell word, a path in which only $NAME expands.

They are not interchangeable: what is safe in an option line would run its ``$()`` in the shell part.
A newline cannot be carried by any of them and is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from slurmgpu.errors import InvalidInput

__all__ = ["directive_value", "job_path", "path_variables", "shell_word", "shellcheck_remarks"]

_PLAIN_DIRECTIVE = r"[A-Za-z0-9_@%+=:,./\[\]~^-]+\Z"
_PLAIN_WORD = r"[A-Za-z0-9_@%+=:,./-]+\Z"
_VARIABLE = r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})"
_BREAKS = r"[\x00\n\r]"


def _refuse_breaks(value: str) -> None:
    if re.search(_BREAKS, value):
        raise InvalidInput(
            f"{value!r} contains a line break or NUL, which no line of a script can carry; remove it"
        )


def directive_value(value: str) -> str:
    """Return a value as it is written after ``#SBATCH --option=``.

    sbatch's own reader: an unquoted ``#`` cuts the line, blanks split it, a backslash escapes even inside
    single quotes; inside double quotes only ``\\`` and ``"`` need an escape (seen on Slurm 22.05).
    """
    _refuse_breaks(value)
    if re.match(_PLAIN_DIRECTIVE, value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def shell_word(value: str) -> str:
    """One word of a shell command, expanded by nothing."""
    _refuse_breaks(value)
    return value if re.match(_PLAIN_WORD, value) else shlex.quote(value)


def job_path(value: str) -> str:
    """Return a path (or a variable's value) in which ``$NAME`` and ``${NAME}`` expand when the job runs, nothing else.

    A leading ``~/`` means ``$HOME/``: inside quotes the shell would leave it as it is.
    """
    _refuse_breaks(value)
    if value == "~" or value.startswith("~/"):
        value = "$HOME" + value[1:]
    if re.match(_PLAIN_WORD, value):
        return value
    pieces: list[str] = []
    end = 0
    for match in re.finditer(_VARIABLE, value):
        pieces.append(_escape(value[end : match.start()]))
        pieces.append(match[0])
        end = match.end()
    pieces.append(_escape(value[end:]))
    return '"' + "".join(pieces) + '"'


def _escape(text: str) -> str:
    """Escape what double quotes leave special: backslash, double quote, dollar, backtick."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


def path_variables(value: str) -> tuple[str, ...]:
    """Return the names of the variables that a path needs when the job runs."""
    return tuple(dict.fromkeys(match[0].strip("${}") for match in re.finditer(_VARIABLE, value)))


_REMARKS = (("SC2016", "$`"), ("SC1003", "\\"), ("SC2088", "~"))


def shellcheck_remarks(words: Iterable[str]) -> tuple[str, ...]:
    """ShellCheck's remarks on words that are quoted on purpose: they look as if they were meant to expand."""
    text = "".join(words)
    return tuple(code for code, signs in _REMARKS if any(sign in text for sign in signs))
