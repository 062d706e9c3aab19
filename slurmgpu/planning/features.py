"""Which nodes a --constraint means (sbatch(1), --constraint)."""

from __future__ import annotations

import re
from collections.abc import Callable

from slurmgpu.lines.constraint import Features, read_constraint
from slurmgpu.models.cluster import Cluster, NodeGroup

__all__ = ["features_of", "joined", "matches"]

_Holds = Callable[[str], "bool | None"]


def _read(expression: str) -> Features | None:
    try:
        return read_constraint(re.sub(r"\s", "", expression))
    except ValueError:
        return None


def features_of(cluster: Cluster, kind: NodeGroup) -> frozenset[str]:
    """The features of a kind of node: those stated, and the one that selects its type of GPU."""
    known = cluster.gpu_types.get(kind.gpu_type or "")
    selects = _read(known.constraint) if known and known.constraint and "|" not in known.constraint else None
    return frozenset((*kind.features, *(selects.names if selects else ())))


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

    read = _read(expression)
    return read and _holds(read, holds)


def _holds(features: Features, holds: _Holds) -> bool | None:
    if features.counted or len(features.operators) > 1 or "," in features.operators:
        return None
    if not features.parts:
        return holds(features.text)
    values = {_holds(part, holds) for part in features.parts}
    # Of "or" one that holds decides, of "and" one that does not.
    decides = features.operators == {"|"}
    return decides if decides in values else None if None in values else not decides


def joined(*expressions: str | None) -> str | None:
    """All of several expressions in one, each part once; None: there is none."""
    given = [expression for expression in dict.fromkeys(expressions) if expression]
    if len(given) == 1:
        return given[0]
    parts: dict[str, None] = {}
    for expression in given:
        read = _read(expression)
        # A mix of & and | stays together.
        split = [one.text for one in read.parts] if read and read.operators == {"&"} else [expression]
        for part in split:
            parts[f"({part})" if "|" in part and part[0] not in "([" else part] = None
    return "&".join(parts) or None
