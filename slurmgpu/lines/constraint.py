"""The expression of a ``--constraint``: features joined by operators, within brackets or not (sbatch(1))."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Features", "read_constraint"]

_TOKEN = r"(?s)\*0*[1-9]\d*(?=[*&|,)\]]|\Z)|[^&|,*()\[\]]+|."
_NO_MATCH, _NO_OPERATOR = "the brackets do not match", "an operator, & or |, is missing"


class Features(NamedTuple):
    """A feature, or several in brackets or as the whole expression."""

    text: str
    """As written, with its count."""
    parts: tuple[Features, ...] = ()
    """What the operators join; none for a feature."""
    operators: frozenset[str] = frozenset()
    """``&``, ``|`` and ``,`` between the parts."""
    counted: bool = False
    """Whether a number of nodes stands in it: ``a*2``."""

    @property
    def names(self) -> frozenset[str]:
        """The features in it."""
        if not self.parts:
            return frozenset({self.text.partition("*")[0]})
        return frozenset().union(*(part.names for part in self.parts))


def read_constraint(expression: str) -> Features:
    """Read an expression.

    Raises:
        ValueError: Slurm refuses it; the text says what is wrong.
    """
    if re.search(r"\s", expression):
        raise ValueError("it contains a blank")
    tokens = re.findall(_TOKEN, expression)
    tokens.reverse()
    try:
        found = _joined(tokens)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    if tokens:
        raise ValueError(_NO_MATCH if tokens[-1] in ")]" else _NO_OPERATOR)
    return found


def _joined(tokens: list[str]) -> Features:
    parts, operators = [_one(tokens)], set[str]()
    text = parts[0].text
    while tokens and tokens[-1] in "&|,":
        operator = tokens.pop()
        operators.add(operator)
        parts.append(_one(tokens))
        text += operator + parts[-1].text
    return Features(text, tuple(parts), frozenset(operators), any(part.counted for part in parts))


def _one(tokens: list[str]) -> Features:
    first = tokens.pop() if tokens else ""
    if first[:1] in tuple("&|,)]*") or not first:
        raise ValueError("a feature is missing beside an operator or in brackets")
    found = Features(first)
    if first in "([":
        found = _joined(tokens)
        closing = tokens.pop() if tokens else ""
        if closing != {"(": ")", "[": "]"}[first]:
            raise ValueError(_NO_MATCH if closing in ("", ")", "]") else _NO_OPERATOR)
        found = found._replace(text=first + found.text + closing)
    while tokens and tokens[-1].startswith("*"):
        count = tokens.pop()
        if count == "*":
            raise ValueError("the * wants a number of nodes, 1 or more, behind a feature")
        found = found._replace(text=found.text + count, counted=True)
    return found
