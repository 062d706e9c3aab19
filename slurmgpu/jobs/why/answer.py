"""The answer of `why` for one job: a sentence, figures, Slurm's estimate, what can be done; and its lines for people."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from slurmgpu.amounts import count, span, time_of_day
from slurmgpu.files.trust import write_atomically
from slurmgpu.jobs.select import scripts_of
from slurmgpu.jobs.view import outcome_of
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import PartitionNow, Present, QueuedJob

__all__ = [
    "MOST_JOBS", "Case", "Fact", "Findings", "Mend", "Shape", "Start", "Verdict", "Why", "as_asked", "document",
    "gpu_option", "gpus", "listed", "remembered", "verdict_of", "why_lines",
]  # fmt: skip

Verdict = Literal["waits", "held", "never", "runs", "ended", "stopped", "unknown"]
"""``never``: it will not start as it is; ``held``: not before somebody releases it; ``stopped``: ended with all saved."""


class Fact(NamedTuple):
    """One thing that is so, in words and in figures. What is not known is None there, never 0."""

    what: str
    text: str
    figures: Mapping[str, object] = {}


class Mend(NamedTuple):
    """A change that would let the job start, and the command that makes it, where there is one."""

    text: str
    command: str | None = None


class Start(NamedTuple):
    """Slurm's estimate of the start, and how it moved since an earlier look."""

    expected: datetime | None
    """None: Slurm has none (yet)."""
    before: datetime | None = None
    """The estimate of the last look."""
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
    """The first cause of a job that failed (``slurmgpu.cause/1``); None: nothing failed, or it has not ended."""
    end: list[str] = field(default_factory=list)
    """The same in lines for people."""
    unknown: dict[str, str] = field(default_factory=dict)
    """The figures that could not be had, and why."""


def document(why: Why) -> dict[str, object]:
    """Return the answer as JSON has it; times in ISO 8601, UTC."""
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


def gpus(number: int, types: Sequence[str] = ()) -> str:
    """`8 a100`, `1 GPU`; types come from Slurm, and are made safe for a terminal."""
    if len(types) == 1 and types[0] != "gpu":
        return f"{number:,} {printable(types[0])}"
    return count(number, "GPU")


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b and c`; of many the first, and how many more."""
    shown = [printable(name) for name in names[:most]]
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def as_asked(asked: QueuedJob, job: JobStatus, *, without: Collection[str] = ()) -> list[str]:
    """sbatch's options for what the job asks for, but those that a shape gives itself."""
    tasks = asked.tasks or 1
    given = {
        "--partition": ",".join(asked.partitions), "--account": job.account, "--qos": job.qos,
        "--nodes": str(asked.nodes), "--ntasks": str(tasks), "--cpus-per-task": str(max(1, asked.cpus // tasks)),
        "--mem": f"{asked.per_node[2]}M" if asked.memory else None,
        "--time": str(max(1, asked.limit // 60)) if asked.limit else None,
        "--constraint": asked.features, "--reservation": asked.reservation, "--licenses": asked.licenses,
        "--nodelist": ",".join(asked.wanted_nodes), "--exclude": ",".join(asked.excluded_nodes),
        "--gpus-per-node": gpu_option(asked, asked.per_node[0]) if asked.gpus_per_node or asked.nodes == 1 else None,
        "--gpus": gpu_option(asked, asked.gpus) if asked.gpus and not asked.gpus_per_node and asked.nodes > 1 else None,
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in given.items() if value and name not in without]
    return [*words, "--exclusive"] if asked.exclusive else words


def gpu_option(asked: QueuedJob, count: int | None) -> str | None:
    """Return a number of the job's GPUs as sbatch's options take it: `a100:4`."""
    if not count:
        return None
    return f"{asked.gpu_types[0]}:{count}" if len(asked.gpu_types) == 1 else str(count)


Findings = Iterator[Fact | Mend]
"""The facts and fixes that a subject yields."""


@dataclass
class Case:
    """A job that waits, what it asks for, and where to look for more."""

    job: JobStatus
    asked: QueuedJob
    present: Present
    word: str
    now: datetime
    never: bool = False
    """Set by a subject: the job will not start as it is."""
    sentence: str = ""
    """Set by a subject that knows better than the table."""

    @property
    def partitions(self) -> list[PartitionNow]:
        """The job's partitions, those that exist."""
        there = self.present.partitions or {}
        return [there[name] for name in self.asked.partitions if name in there]

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The nodes of its partitions; of a job in a reservation, those that are the reservation's."""
        hosts = frozenset[str]().union(*(one.hosts for one in self.partitions))
        name = self.asked.reservation
        found = (self.present.reservations or {}).get(name) if name else None
        return hosts & found.hosts if found is not None and found.hosts else hosts

    @cached_property
    def queue(self) -> list[QueuedJob] | None:
        """Everybody's unfinished jobs in all partitions that have some of these nodes; None where that is not told."""
        there = (self.present.partitions or {}).values()
        sharing = [one.name for one in there if one.hosts & self.hosts]
        return self.present.queue(sharing or self.asked.partitions)

    @property
    def id(self) -> str:
        """The id for scontrol: the whole array, where its tasks wait together."""
        return self.job.job_id.partition("_[")[0]

    def change(self, option: str, value: str) -> str:
        """Return the command that changes the waiting job."""
        return f"scontrol update JobId={self.id} {option}={shlex.quote(value)}"

    def again(self, *options: str) -> str:
        """Return the commands that take it out of the queue and submit it in another way, with all else that it asks for."""
        script = self.asked.script or self.job.script
        if script is None or scripts_of(self.job):
            return f"slurmgpu cancel {self.id}  # then submit its job file again with {' '.join(options)}"
        names = {one.partition("=")[0] for one in options}
        if "--gpus" in names:
            names |= {"--gpus-per-node"}
        words = [*as_asked(self.asked, self.job, without=names), *options]
        return f"slurmgpu cancel {self.id} && sbatch {shlex.join(words)} {shlex.quote(script.split()[0])}"


SCHEMA = "slurmgpu.estimates/1"
MOST_JOBS = 200
"""Of more, those looked at longest ago are forgotten."""
MOST_BYTES = 128 * 1024


def remembered(job: JobStatus, expected: datetime | None, now: datetime, environ: Mapping[str, str]) -> Start:
    """Return the estimate beside that of the last look, which it takes the place of.

    A cache that cannot be read or written is none: the estimate alone is returned.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cluster = re.sub(r"[^A-Za-z0-9_.-]", "-", job.cluster or "unknown")[:60].strip(".") or "unknown"
    path = cache / "slurmgpu" / "estimates" / f"{cluster}.json"
    known: dict[str, dict[str, object]] = {}  # the oldest look first
    try:
        with path.open("rb") as file:
            there = os.fstat(file.fileno())
            if there.st_uid == os.getuid() and there.st_size <= MOST_BYTES:
                found = json.loads(file.read(MOST_BYTES))
                jobs = found["jobs"] if found["schema"] == SCHEMA else {}
                known = {key: one for key, one in jobs.items() if isinstance(one, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    key = f"{job.job_id} {job.submit.isoformat() if job.submit else ''}"
    before = known.pop(key, {})
    known[key] = {
        name: None if moment is None else moment.astimezone(timezone.utc).isoformat(timespec="seconds")
        for name, moment in (("looked", now), ("expected", expected))
    }
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = dict(list(known.items())[-MOST_JOBS:])
        write_atomically(path, json.dumps({"schema": SCHEMA, "jobs": kept}) + "\n")
    return Start(expected, _moment(before.get("expected")), _moment(before.get("looked")))


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo else None


_LEAST_GAP = 5 * 60
_LATER = timedelta(minutes=3)
_VERDICTS = {
    "waits": "is waiting", "held": "is held", "never": "is waiting, and will never start as it is", "runs": "is running",
    "stopped": "stopped in good order", "unknown": "is unknown",
}  # fmt: skip


def verdict_of(why: Why) -> str:
    """Return in a word or two what a job does, or how it ended."""
    return _VERDICTS.get(why.verdict) or outcome_of(why.job.state)


def why_lines(why: Why, now: datetime, width: int) -> list[str]:
    """Return the answer for people: the sentence, then what it rests on, then what can be done."""

    def folded(text: str, mark: str, hang: str = "") -> list[str]:
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        wrapper.initial_indent, wrapper.subsequent_indent = mark, " " * len(mark) + hang
        return wrapper.wrap(text)

    job, verdict = why.job, verdict_of(why)
    first = f"job {job.job_id}{f' ({printable(job.name)})' if job.name else ''} {verdict}"
    if why.verdict in ("waits", "held", "never") and job.reason:
        first += f"; Slurm's reason: {printable(job.reason)}"
    lines = ["", *folded(first, "", "    ")]
    # The first line, or the first cause, may say all that the sentence does.
    in_cause = bool(why.end) and (why.sentence in why.end[0] or why.sentence.startswith("the command failed"))
    if why.sentence not in (verdict, "runs", "completed", "failed") and not in_cause:
        lines += folded(why.sentence, "  ")
    for fact in why.facts:
        lines += folded(fact.text, "  - ") if fact.text not in why.sentence else []
    for line in why.end:
        text = line.lstrip()
        lines += folded(text, " " * (2 + len(line) - len(text)), "  ")
    if why.start is not None:
        lines += folded(_start(why.start, now), "  - ")
    if why.shapes is not None:
        lines += ["what would start, by Slurm's estimate for a new job (sbatch --test-only; no promise):"]
        lines += [line for shape in why.shapes for line in folded(_shape(shape, now), "  - ")]
    if why.mends:
        lines += ["what to do:"]
        for mend in why.mends:
            lines += folded(mend.text, "  - ")
            lines += [f"      {printable(mend.command)}"] if mend.command else []
    for what, why_not in why.unknown.items():
        lines += folded(f"{what}: {printable(why_not)}", "  ? ")
    return lines


def _start(start: Start, now: datetime) -> str:
    if start.expected is None:
        text = "Slurm has no estimate of its start yet"
        if start.before is not None and start.looked is not None:
            text += f"; at your last look ({time_of_day(start.looked, now)}) it was {time_of_day(start.before, now)}"
        return text
    wait = (start.expected - now).total_seconds()
    when = f"in {span(wait)}" if wait > 0 else "any moment"
    text = f"Slurm expects it to start at {time_of_day(start.expected, now)}, {when}"
    if start.looked is None:
        return text
    looked = time_of_day(start.looked, now)
    if start.before is None:
        return f"{text}; at your last look ({looked}) there was no estimate"
    moved = (start.expected - start.before).total_seconds()
    if abs(moved) < 60:
        return f"{text}; the same as at your last look ({looked})"
    return f"{text}; {span(moved)} {'later' if moved > 0 else 'earlier'} than at your last look ({looked})"


def _shape(shape: Shape, now: datetime) -> str:
    what = f"with {' '.join(shape.options)}" if shape.options else "as it is"
    if shape.refused is not None:
        return f"{what}: never; Slurm says: {printable(shape.refused)}"
    text = f"{what}: {time_of_day(shape.start, now) if shape.start else 'unknown'}"
    free_for = shape.free_for
    if shape.start is None or shape.start <= now + _LATER or free_for is None or free_for < _LEAST_GAP:
        return text
    # It fits what is free before the jobs ahead are to start: Slurm's estimate does not look for such gaps.
    if shape.limit is not None and shape.limit <= free_for:
        return f"{text}; but it fits what is free now, and holds up no job ahead: Slurm may start it at once"
    return (
        f"{text}; but it fits what is free now, where with at most {span(free_for)} it holds up no job ahead"
    )
