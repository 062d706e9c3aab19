"""Which nodes a --constraint means (sbatch(1), --constraint)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from slurmgpu.models.cluster import Cluster, NodeGroup

__all__ = ["features_of", "joined", "matches", "named_in"]

_FEATURE = r"[A-Za-z0-9_.:=+-]+"
_Holds = Callable[[str], "bool | None"]


def named_in(expression: str) -> frozenset[str]:
    """The features that an expression names."""
    return frozenset(re.findall(_FEATURE, re.sub(r"\*\d+", "", expression)))


def features_of(cluster: Cluster, kind: NodeGroup) -> frozenset[str]:
    """The features of a kind of node: those stated, and the one that selects its type of GPU."""
    known = cluster.gpu_types.get(kind.gpu_type or "")
    by_type = named_in(known.constraint) if known and known.constraint and "|" not in known.constraint else ()
    return frozenset((*kind.features, *by_type))


def _known_features(cluster: Cluster) -> frozenset[str]:
    groups = [group for partition in cluster.partitions.values() for group in partition.kinds]
    return frozenset().union(*(features_of(cluster, group) for group in groups)) if groups else frozenset()


def matches(cluster: Cluster, expression: str, kind: NodeGroup) -> bool | None:
    """Whether nodes of a kind have what an expression demands; None: that cannot be told.

    A profile typed from documentation may leave features out: one that it names nowhere is not checked. Counts
    (``a*2``) and a mix of & and | without parentheses are not judged.
    """
    everywhere, here = _known_features(cluster), features_of(cluster, kind)
    complete = cluster.slurm.release is not None  # read from Slurm itself: there are no others

    def holds(feature: str) -> bool | None:
        return feature in here if complete or feature in everywhere else None

    try:
        return _evaluate(re.sub(r"\s", "", expression), holds)
    except ValueError:
        return None


def _evaluate(text: str, holds: _Holds) -> bool | None:
    tokens = re.findall(rf"{_FEATURE}|[&|()\[\]]", text)
    if "".join(tokens) != text:
        raise ValueError(text)
    value, rest = _any_or_all(tokens, holds)
    if rest:
        raise ValueError(text)
    return value


def _any_or_all(tokens: list[str], holds: _Holds) -> tuple[bool | None, list[str]]:
    value, tokens = _one(tokens, holds)
    values, operators = [value], set()
    while tokens and tokens[0] in "&|":
        operators.add(tokens[0])
        value, tokens = _one(tokens[1:], holds)
        values.append(value)
    if len(operators) > 1:
        raise ValueError("& and | without parentheses")
    return (_any(values) if operators == {"|"} else _all(values)), tokens


def _one(tokens: list[str], holds: _Holds) -> tuple[bool | None, list[str]]:
    if not tokens:
        raise ValueError("an operator at the end")
    first, rest = tokens[0], tokens[1:]
    if first in "([":
        value, rest = _any_or_all(rest, holds)
        if not rest or rest[0] != {"(": ")", "[": "]"}[first]:
            raise ValueError("an open bracket")
        return value, rest[1:]
    if first in "&|)]":
        raise ValueError("an operator where a feature should be")
    return holds(first), rest


def _any(values: Iterable[bool | None]) -> bool | None:
    values = list(values)
    return True if True in values else (None if None in values else False)


def _all(values: Iterable[bool | None]) -> bool | None:
    values = list(values)
    return False if False in values else (None if None in values else True)


def joined(*expressions: str | None) -> str | None:
    """All of several expressions in one, each part once; None: there is none."""
    given = [expression for expression in dict.fromkeys(expressions) if expression]
    if len(given) == 1:
        return given[0]
    parts: dict[str, None] = {}
    for expression in given:
        split = _parts(expression)
        if len(split) > 1 and any("|" in part and part[0] not in "([" for part in split):
            split = [expression]  # a mix of & and | stays together
        for part in split:
            parts[f"({part})" if "|" in part and part[0] not in "([" else part] = None
    return "&".join(parts) or None


def _parts(expression: str) -> list[str]:
    """What an expression joins by & outside of brackets."""
    parts, depth = [""], 0
    for letter in expression:
        depth += (letter in "([") - (letter in ")]")
        if letter == "&" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
