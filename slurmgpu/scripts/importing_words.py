"""Shell words that mean the same whoever reads them: plain text, or a path with variables."""

from __future__ import annotations

import itertools
import re

from slurmgpu.scripts.shell import pieces

__all__ = ["Unsure", "literal", "path"]

# What an unquoted word may hold and still be itself: nothing that the shell expands or splits at.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_IN_QUOTES = re.compile(r'[^"\\$`]+')


class Unsure(Exception):
    """What a word or a line means cannot be told for certain; its text says why."""


def literal(word: str) -> str:
    """The text of a word in which nothing expands; Unsure otherwise."""
    return _read(word, variables=False)


def path(word: str) -> str:
    """A word in which only ``$NAME``, ``${NAME}`` and a leading ``~/`` expand, as a job file has it; else Unsure."""
    return _read(word, variables=True)


def _read(word: str, *, variables: bool) -> str:
    home = variables and (word == "~" or word.startswith("~/"))
    found = ["~"] if home else []
    for quote, text in pieces(word[1:] if home else word):
        if quote == "'":
            # A job file would expand what single quotes keep.
            if variables and re.search(r"\$[A-Za-z_{]", text):
                raise Unsure(f"{word} is to stay as it is, and a job file would expand it")
            found.append(text)
            continue
        plain, at = {"": _PLAIN, '"': _IN_QUOTES}.get(quote), 0
        while at < len(text):
            match = (plain and plain.match(text, at)) or (
                _VARIABLE.match(text, at) if variables and plain else None
            )
            if match is None:
                raise Unsure(f"the shell expands {word}, and in a job file it would stay as it is")
            found.append(match[0])
            at = match.end()
    if variables and not home and "".join(found).startswith("~"):
        raise Unsure(f"{word} is quoted, so it is no home folder")
    # "$A"b is not $Ab.
    for index, (piece, following) in enumerate(itertools.pairwise(found)):
        if _VARIABLE.fullmatch(piece) and not piece.endswith("}") and re.match(r"\w", following):
            found[index] = f"${{{piece[1:]}}}"
    return "".join(found)
