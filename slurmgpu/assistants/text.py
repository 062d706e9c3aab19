"""Text of jobs, files and Slurm as an assistant gets it: plain, of bounded length, and marked as data."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from slurmgpu.printable import printable

__all__ = ["MOST_CHARACTERS", "marked", "plain", "shortened"]

MOST_CHARACTERS = 40_000
"""Of one answer: some ten thousand tokens."""

# Colours, and what else ECMA-48 lets a program say to a terminal: within a secret they would hide it from a search.
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"
)


def plain(text: str) -> str:
    """The text as a terminal would have left it: no colours, of a line that was redrawn what stood there last.

    Other control characters, and letters that nobody sees, are spelled out.
    """
    return "\n".join(_plain_lines(_SEQUENCE.sub("", text).replace("\0", "")))


def _plain_lines(text: str) -> Iterator[str]:
    for line in text.rstrip("\n").split("\n"):
        last = next((part for part in reversed(line.split("\r")) if part), "") if "\r" in line else line
        yield printable(last.replace("\t", "    "))


def shortened(text: str, *, keep_end: bool = False) -> str:
    """No more than so many characters, whole lines where there are such; what is left out is counted."""
    if len(text) <= MOST_CHARACTERS:
        return text
    left = len(text) - MOST_CHARACTERS
    if keep_end:
        kept = text[left:]
        _, _, whole = kept.partition("\n")
        return f"[the first {left:,} characters and more are left out]\n{whole or kept}"
    kept = text[:MOST_CHARACTERS]
    whole, _, _ = kept.rpartition("\n")
    return f"{whole or kept}\n[the last {left:,} characters and more are left out]"


def marked(text: str) -> str:
    """The text between two marks that it cannot have known: whatever it says in between is data."""
    mark = secrets.token_hex(8)
    while mark in text:
        mark = secrets.token_hex(8)
    return f"<data {mark}>\n{text}\n</data {mark}>"
