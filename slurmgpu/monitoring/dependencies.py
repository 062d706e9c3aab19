"""Which jobs wait for which: read from a dependency's text, as Slurm and job files write it, and put in an order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["WAITS_FOR", "After", "connected", "layers", "read_dependency"]

WAITS_FOR = {
    "after": "{} to start",
    "afterany": "{} to end",
    "afterok": "{} to end well",
    "afternotok": "{} to fail",
    "aftercorr": "its task of {} to end well",
    "afterburstbuffer": "{} to free its burst buffer",
}
"""What a job waits for of another, by the kind of its dependency."""

_JOB = re.compile(r"([\d_*+]+)(?:\((\w+)\))?", re.ASCII)


class After(NamedTuple):
    """One job that another waits for."""

    kind: str
    """``afterok``, as Slurm writes it."""
    job: str
    """Its id as it is written: ``12``, ``12_3``, ``12_*``, ``12+5`` (five minutes after)."""
    how: str = ""
    """What Slurm says of it: ``unfulfilled``, ``failed``."""

    @property
    def number(self) -> int | None:
        """The number of the job or array; None of one that no job can have."""
        digits = re.match(r"\d{1,18}(?!\d)", self.job, re.ASCII)
        return int(digits[0]) if digits else None


def read_dependency(text: str) -> list[After]:
    """The jobs in ``afterok:12:13,afterany:14(unfulfilled)``; what is none, such as ``singleton``, is left out."""
    found = []
    for part in re.split(r"[,?]", text):
        kind, *jobs = part.strip().split(":")
        if kind.startswith("after"):
            matches = (_JOB.fullmatch(job) for job in jobs)
            found += [After(kind, match[1], match[2] or "") for match in matches if match]
    return found


def connected(start: int, before: Mapping[int, Iterable[int]]) -> set[int]:
    """All that ``start`` waits for or that waits for it, over any number of jobs between; itself too.

    ``before`` has, of each job, those that it waits for.
    """
    beside: dict[int, set[int]] = {}
    for job, others in before.items():
        for other in others:
            beside.setdefault(job, set()).add(other)
            beside.setdefault(other, set()).add(job)
    found, left = {start}, [start]
    while left:
        new = beside.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def layers(jobs: Iterable[int], before: Mapping[int, Iterable[int]]) -> Sequence[list[int]]:
    """The jobs in columns, each one after all that it waits for; in a circle, which Slurm allows nobody, somewhere."""
    left, placed = sorted(jobs), set[int]()
    among = set(left)
    made = []
    while left:
        free = [job for job in left if all(one in placed or one not in among for one in before.get(job, ()))]
        column = free or left
        made.append(column)
        placed.update(column)
        left = [job for job in left if job not in placed]
    return made
