"""Shell words that mean the same whoever reads them: plain text, or a path with variables."""

from __future__ import annotations

import itertools
import re

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
    found: list[str] = []
    at = 0
    if variables and (word == "~" or word.startswith("~/")):
        found.append("~")
        at = 1
    while at < len(word):
        quote = word[at]
        if quote == "'":
            end = word.index("'", at + 1)
            piece = word[at + 1 : end]
            # A job file would expand what single quotes keep.
            if variables and re.search(r"\$[A-Za-z_{]", piece):
                raise Unsure(f"{word} is to stay as it is, and a job file would expand it")
            found.append(piece)
            at = end + 1
        elif quote == '"':
            at = _quoted(word, at + 1, found, variables=variables)
        else:
            at = _piece(word, at, _PLAIN, found, variables=variables)
    if variables and not word.startswith("~") and "".join(found).startswith("~"):
        raise Unsure(f"{word} is quoted, so it is no home folder")
    # "$A"b is not $Ab.
    for index, (piece, following) in enumerate(itertools.pairwise(found)):
        if _VARIABLE.fullmatch(piece) and not piece.endswith("}") and re.match(r"\w", following):
            found[index] = f"${{{piece[1:]}}}"
    return "".join(found)


def _quoted(word: str, at: int, found: list[str], *, variables: bool) -> int:
    while word[at] != '"':
        at = _piece(word, at, _IN_QUOTES, found, variables=variables)
    return at + 1


def _piece(word: str, at: int, plain: re.Pattern[str], found: list[str], *, variables: bool) -> int:
    match = plain.match(word, at) or (_VARIABLE.match(word, at) if variables else None)
    if match is None:
        raise Unsure(f"the shell expands {word}, and in a job file it would stay as it is")
    found.append(match[0])
    return match.end()
