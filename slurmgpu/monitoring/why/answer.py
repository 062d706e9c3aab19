"""What is told of one job: a sentence, the figures behind it, Slurm's estimate, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from slurmgpu.models.run import JobStatus

__all__ = ["Fact", "Mend", "Shape", "Start", "Verdict", "Why", "document"]

Verdict = Literal["waits", "held", "never", "runs", "ended", "stopped", "unknown"]
"""``never``: it will not start as it is; ``held``: not before somebody releases it; ``stopped``: ended with all saved."""


class Fact(NamedTuple):
    """One thing that is so, in words and in figures. What is not known is None there, never 0."""

    what: str
    text: str
    figures: Mapping[str, object] = {}


class Mend(NamedTuple):
    """What would let the job start, and the command that does it, where there is one."""

    text: str
    command: str | None = None


class Start(NamedTuple):
    """Slurm's estimate of the start, and how it moved since an earlier look."""

    expected: datetime | None
    """None: Slurm has none (yet)."""
    before: datetime | None = None
    """What it was at the last look."""
    looked: datetime | None = None
    """When that was; None: this is the first look."""


class Shape(NamedTuple):
    """The job in another shape, and when Slurm would start that."""

    options: tuple[str, ...]
    """sbatch's options that differ from the job's; none: as it is."""
    start: datetime | None
    refused: str | None = None
    """Slurm's words, where it would not take it."""
    limit: int | None = None
    """Its time limit in seconds; None: it has none."""
    free_for: int | None = None
    """The seconds for which what is free now suffices for it, before Slurm means to start a job ahead; None: not known."""


@dataclass
class Why:
    """All that is told of a job."""

    job: JobStatus
    verdict: Verdict
    sentence: str
    facts: list[Fact] = field(default_factory=list)
    start: Start | None = None
    mends: list[Mend] = field(default_factory=list)
    shapes: list[Shape] | None = None
    """None: they were not asked for."""
    cause: Mapping[str, object] | None = None
    """What failed first in a job that has ended (``slurmgpu.cause/1``); None: nothing did, or it has not ended."""
    end: list[str] = field(default_factory=list)
    """The same in lines for people."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What could not be had, and why."""


def document(why: Why) -> dict[str, object]:
    """As JSON has it; times in ISO 8601, UTC."""
    start = why.start
    return {
        "job": why.job.model_dump(mode="json"),
        "verdict": why.verdict,
        "sentence": why.sentence,
        "facts": [{"what": one.what, "text": one.text, **_plain(one.figures)} for one in why.facts],
        "start": None if start is None else _plain(start._asdict()),
        "mends": [one._asdict() for one in why.mends],
        "shapes": None if why.shapes is None else [_plain(one._asdict()) for one in why.shapes],
        "cause": None if why.cause is None else dict(why.cause),
        "unknown": why.unknown,
    }


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
        for key, value in values.items()
    }
