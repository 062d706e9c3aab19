"""One row of the table: how a failure is recognised, what it says, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

__all__ = ["ROLES", "Row", "filled"]

ROLES = {
    "cause": "a cause",
    "job": "what Slurm did to the whole job: a cause, unless a process had failed before",
    "host": "what the node did to a process: a cause that its own messages do not name",
    "waiting": "ranks that waited for another: the one that did not come is looked for",
    "symptom": "most often the consequence of another process's end: told as likely where nothing else is known",
    "stop": "an orderly end, everything saved: no failure, where all processes ended with exit code 75",
    "consequence": "only a consequence of another rank's end; never the first cause",
}
"""Kinds of rows, in words."""


class Row(NamedTuple):
    """A failure that is known."""

    id: str
    seen: str
    """Plain text that must be in a line for the pattern to be tried; several are separated by a bar: ``|``."""
    pattern: str
    """A regular expression, searched in the line; in an exception it is searched in the message and what follows."""
    what: str
    """The cause in words, on one line: ``{name}`` is a group of the pattern; ``<...>`` is left out where one is missing."""
    fix: str
    role: str = "cause"
    where: str = "any"
    """``exception``: only where a traceback ends with it, since programs also print what they have caught; ``line``: only
    outside of tracebacks; ``last``: as ``line``, but only among the last lines that matter; ``any``: everywhere."""
    nearby: tuple[int, str] = (0, "")
    """A pattern whose groups are more values, and within how many lines below (negative: above) it is looked for."""

    @property
    def must_be_last(self) -> bool:
        """True if it counts only among the last lines that matter: programs say so of what they get over, too."""
        return (
            self.where == "last"
            or self.role in ("cause", "symptom")
            or self.id in ("segfault", "bus-error", "aborted")
        )

    @property
    def literals(self) -> tuple[bytes, ...]:
        """Return the words of which one must be in the bytes of a log."""
        return tuple(one.encode() for one in self.seen.split("|"))

    def match(self, text: str) -> Optional[re.Match[str]]:
        """Return where it is in a text; None where it is not."""
        return re.search(self.pattern, text) if any(one in text for one in self.seen.split("|")) else None


def filled(template: str, values: Mapping[str, Optional[str]]) -> str:
    """Return a template with its names filled in, on one line of bounded length."""

    def optional(match: re.Match[str]) -> str:
        names = re.findall(r"\{(\w+)\}", match[1])
        return match[1] if all(values.get(name) for name in names) else ""

    shown = re.sub(r"<([^<>]*)>", optional, template)
    shown = re.sub(r"\{(\w+)\}", lambda match: (values.get(match[1]) or "?").strip(), shown)
    shown = " ".join(shown.split())
    return shown if len(shown) <= 400 else shown[:397] + "..."
