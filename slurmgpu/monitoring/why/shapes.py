"""What would start sooner: the job in other shapes, each asked of Slurm itself (`sbatch --test-only`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.why.answer import Shape
from slurmgpu.monitoring.why.case import Case
from slurmgpu.monitoring.why.line import ahead_of
from slurmgpu.monitoring.why.options import as_asked, gpu_option
from slurmgpu.monitoring.why.room import elsewhere, room_for
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, Present

__all__ = ["MOST_ASKED", "shapes_of"]

MOST_ASKED = 6
"""The most shapes that Slurm is asked about: each costs it a call and a job id."""
SCRIPT = "#!/bin/sh\ntrue\n"
_SHORTEST = 15 * 60
# Slurm looks at the queue every half minute or so, and starts jobs by the minute.
_SLACK = timedelta(minutes=2)
_FAR = timedelta(days=365)


def shapes_of(slurm: Slurm, job: JobStatus, present: Present, folder: Path, now: datetime) -> list[Shape]:
    """The job as it is, and in shapes that could start sooner, with Slurm's estimate for a new job of each.

    Raises SlurmUnreachable where it does not answer.
    """
    asked = next(iter(present.asked(job.raw_id)), None) if job.raw_id is not None else None
    if asked is None:
        return []
    found: list[Shape] = []
    gaps = _Gaps(Case(job, asked, present, "", now))
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        script = Path(temporary) / "script.sbatch"
        script.write_text(SCRIPT, encoding="utf-8")
        for options in list(_shapes(job, asked, present))[:MOST_ASKED]:
            words = [*as_asked(asked, job, without={one.partition("=")[0] for one in options}), *options]
            told = slurm.estimate(script, words, cwd=folder)
            refused = None if told.accepted else told.text
            free_for = None if refused else gaps.within(options)
            found.append(Shape(options, told.start, refused, _limit(asked, options), free_for))
    return found


class _Gaps:
    """What is free until the jobs ahead are to start: `--test-only` does not look there, and backfilling does."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def within(self, options: tuple[str, ...]) -> int | None:
        """The seconds for which the job, in another shape, may have what is free now; None: it does not fit, or who knows.

        Only in the partitions that it is in.
        """
        asked = _reshaped(self.case.asked, options)
        queue, nodes, first = self.case.queue, self.case.present.nodes, self._first
        if (
            asked is None
            or queue is None
            or nodes is None
            or first is None
            or self.case.present.hides("jobs")
        ):
            return None
        whole = asked.exclusive or any(one.rules.whole_nodes for one in self.case.partitions)
        room = room_for(asked, nodes, self.case.hosts, queue, whole_nodes=whole)
        if room.fitting < asked.nodes or room.releases or room.enough is not None:
            return None
        return max(0, int((first - self.case.now - _SLACK).total_seconds()) // 60 * 60)

    @cached_property
    def _first(self) -> datetime | None:
        """When Slurm means to start the first of the jobs ahead, far from now where there is none; None: not known of each."""
        case, there = self.case, self.case.present.partitions or {}
        queue = [one for one in case.queue or () if one.waits]
        ahead = [one.start for one in queue if ahead_of(case.asked, None, [one], there).jobs]
        starts = [start for start in ahead if start is not None]
        if len(starts) < len(ahead):
            return None
        return min(starts, default=case.now + _FAR)


def _limit(asked: Asked, options: tuple[str, ...]) -> int | None:
    """The time limit of a shape, in seconds."""
    halved = any(one.startswith("--time=") for one in options)
    return asked.limit // 2 // 60 * 60 if halved and asked.limit else asked.limit


def _reshaped(asked: Asked, options: tuple[str, ...]) -> Asked | None:
    """What the job asks for in another shape; None in another partition."""
    given = dict(one.removeprefix("--").split("=", 1) for one in options)
    if "partition" in given:
        return None
    gpus, cpus, memory = asked.per_node
    if "nodes" in given:
        nodes = int(given["nodes"])
        share = [
            None if count is None else count * nodes // asked.nodes for count in (asked.gpus, asked.memory)
        ]
        return replace(asked, nodes=nodes, gpus=share[0], memory=share[1], cpus=cpus * nodes)
    if "gpus-per-node" in given:
        gpus //= 2
        half = None if asked.memory is None else max(1, memory // 2)
        return replace(asked, gpus=gpus, gpus_per_node=gpus, cpus=max(1, cpus // 2), memory=half)
    return asked


def _shapes(job: JobStatus, asked: Asked, present: Present) -> Iterator[tuple[str, ...]]:
    """The options that differ, the most likely to help first."""
    yield ()
    if asked.limit and asked.limit // 2 >= _SHORTEST:
        yield (f"--time={_time(asked.limit // 2)}",)
    each = asked.per_node[0]
    if asked.nodes > 1:
        yield (f"--nodes={asked.nodes // 2}", *_half_tasks(asked))
    elif each > 1:
        half = gpu_option(asked, each // 2)
        yield (f"--gpus-per-node={half}", f"--cpus-per-task={max(1, asked.cpus // (asked.tasks or 1) // 2)}",
               *([f"--mem={max(1, asked.per_node[2] // 2)}M"] if asked.memory else []))  # fmt: skip
    for one in elsewhere(job, asked, present):
        yield (f"--partition={one.name}",)


def _half_tasks(asked: Asked) -> tuple[str, ...]:
    return (f"--ntasks={max(1, (asked.tasks or asked.nodes) * (asked.nodes // 2) // asked.nodes)}",)


def _time(seconds: int) -> str:
    hours, rest = divmod(seconds // 60, 60)
    return f"{hours:02}:{rest:02}:00"
