"""Job ids of arrays and heterogeneous jobs, host lists, and the patterns in names of output files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["JobId", "expand_pattern", "first_host"]

_ID = re.compile(r"(\d{1,18})(?:_(\d{1,18}|\[[^\]\s]*\]?))?(?:\+(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class JobId:
    """A job id in its parts: `112`, `112_3`, `112_[0-4%2]`, `113+1`."""

    number: int
    tasks: str | None = None
    """The array task (`3`), or those that still wait together (`[0-4%2]`)."""
    component: int | None = None
    """The component of a heterogeneous job."""

    @classmethod
    def parse(cls, text: str) -> JobId | None:
        """Read an id as Slurm shows it; None when the text is not an id."""
        match = _ID.fullmatch(text)
        if not match:
            return None
        return cls(int(match[1]), match[2], None if match[3] is None else int(match[3]))

    def covers(self, other: JobId) -> bool:
        """Whether asking for this id asks for `other`, too: an array's id means all its tasks."""
        if self.number != other.number:
            return False
        if self.component is not None and self.component != other.component:
            return False
        if self.tasks is None or self.tasks == other.tasks:
            return True
        if other.tasks is None:
            return False
        if self.tasks.isdigit():
            return _holds(other.tasks, int(self.tasks))
        if other.tasks.isdigit():
            return _holds(self.tasks, int(other.tasks))
        return any(_holds(other.tasks, index) for index in _indices(self.tasks))


_MOST_INDICES = 100_000


def _indices(tasks: str) -> Iterator[int]:
    """The indices of a list such as `[0-4,7,10-20:5%2]`, as many as any array has."""
    for low, high, step in _spans(tasks):
        yield from range(low, min(high, low + _MOST_INDICES * step) + 1, step)


def _holds(tasks: str, index: int) -> bool:
    """Whether a list such as `[0-4,7,10-20:5%2]` holds the index."""
    return any(low <= index <= high and (index - low) % step == 0 for low, high, step in _spans(tasks))


@lru_cache(maxsize=64)
def _spans(tasks: str) -> tuple[tuple[int, int, int], ...]:
    """First, last and step of each part of a list; parts that cannot be read are left out."""
    parts = [
        re.fullmatch(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", part, re.ASCII)
        for part in tasks.strip("[]").split("%")[0].split(",")
    ]
    return tuple(
        (int(match[1]), int(match[2] or match[1]), int(match[3] or 1) or 1) for match in parts if match
    )


def first_host(node_list: str) -> str:
    """Return the first host of a list such as `n[001-004,7],login1`."""
    head = re.match(r"([^\[,]*)(?:\[([^\]]*)\]([^\[,]*))?", node_list)
    if head is None or head[2] is None:
        return head[1] if head else ""
    return f"{head[1]}{re.split('[-,]', head[2])[0]}{head[3]}"


_PATTERN = re.compile(r"(%%|%([0-9]*)([jJAaxuNtnsbr])|%[0-9]+|[^%]+|%)")


@lru_cache(maxsize=1024)
def _parts(pattern: str) -> tuple[tuple[str, str, int], ...] | None:
    """A pattern's texts, and its letters with their widths; None where releases differ. Many jobs have the same."""
    parts = []
    for match in _PATTERN.finditer(pattern):
        text, width, letter = match.groups()
        if letter:
            parts.append(("", letter, min(int(width.lstrip("0")[:3] or 0), 10) if letter in "jJAatn" else 0))
        # 22.05 makes "5q" of "%5q" and "100%" of "100%"; 26.05 makes "%5q" and "100".
        elif text != "%%" and text[0] == "%" and (len(text) > 1 or match.end() == len(pattern)):
            return None
        else:
            parts.append(("%" if text == "%%" else text, "", 0))
    return tuple(parts)


def expand_pattern(
    pattern: str, *, job_id: JobId, raw_id: int | None, name: str, user: str | None, node_list: str | None
) -> str | None:
    """Expand `%j %J %A %a %x %u %N %t %n %s %%` in the name of an output file, as slurmd does for the batch script.

    None when a part is not known yet (`%N` before the job has nodes, `%a` of tasks that still wait together),
    and where releases differ: `%b`, `%r`, a width before anything else, a `%` at the very end. A backslash
    anywhere switches expansion off. Source: sbatch's manual page, "filename pattern", and what 20.11, 22.05,
    24.11 and 26.05 do: a width is 10 at most.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    if "%" not in pattern:
        return pattern
    parts = _parts(pattern)
    if parts is None:
        return None
    task = job_id.tasks if job_id.tasks and job_id.tasks.isdigit() else None
    waiting = job_id.tasks is not None and task is None
    # Of a heterogeneous job there is one batch script: the first component's, on its first node.
    raw = raw_id if raw_id is not None and job_id.component is None else job_id.number
    values: dict[str, str | None] = {
        "j": None if waiting else str(raw),
        "J": None if waiting else str(raw),
        "A": str(job_id.number),
        # A job that is not an array has no index; Slurm then writes its "no value" number.
        "a": None if waiting else task or "4294967294",
        "x": name,
        "u": user,
        "N": first_host(node_list) if node_list and "N" in pattern and not job_id.component else None,
        "t": "0",
        "n": "0",
        "s": "batch",
    }
    found: list[str] = []
    for text, letter, width in parts:
        # %b is the index modulo 10 from 24.11 on, if not before, and %r the restarts from 26.05 on.
        value = values.get(letter) if letter else text
        if value is None:
            return None
        found.append(value.zfill(width) if width else value)
    return "".join(found)
