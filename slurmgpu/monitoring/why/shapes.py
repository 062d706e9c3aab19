"""What would start sooner: the job in other shapes, each asked of Slurm itself (`sbatch --test-only`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.why.answer import Shape
from slurmgpu.monitoring.why.options import as_asked, gpu_option
from slurmgpu.monitoring.why.room import elsewhere
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, Present

__all__ = ["MOST_ASKED", "shapes_of"]

MOST_ASKED = 6
"""The most shapes that Slurm is asked about: each costs it a call and a job id."""
SCRIPT = "#!/bin/sh\ntrue\n"
_SHORTEST = 15 * 60


def shapes_of(slurm: Slurm, job: JobStatus, present: Present, folder: Path) -> list[Shape]:
    """The job as it is, and in shapes that could start sooner, with Slurm's estimate for a new job of each.

    Raises SlurmUnreachable where it does not answer.
    """
    asked = next(iter(present.asked(job.raw_id)), None) if job.raw_id is not None else None
    if asked is None:
        return []
    found: list[Shape] = []
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        script = Path(temporary) / "script.sbatch"
        script.write_text(SCRIPT, encoding="utf-8")
        for options in list(_shapes(job, asked, present))[:MOST_ASKED]:
            words = [*as_asked(asked, job, without={one.partition("=")[0] for one in options}), *options]
            told = slurm.estimate(script, words, cwd=folder)
            found.append(Shape(options, told.start, None if told.accepted else told.text))
    return found


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
