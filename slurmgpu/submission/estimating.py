"""When a job would start on each partition that it fits: Slurm's own estimates, asked for only when wanted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.slurm import Estimate, Slurm

__all__ = ["MOST_ASKED", "When", "estimates"]

MOST_ASKED = 5
"""The most partitions that are asked for: each costs Slurm a call and a job id."""


class When(NamedTuple):
    """Slurm's estimate for one partition (None: whatever Slurm takes)."""

    partition: str | None
    estimate: Estimate


def estimates(
    slurm: Slurm, partitions: Sequence[str | None], script_for: Callable[[str | None], str], folder: Path
) -> list[When]:
    """Ask Slurm for each of at most five partitions; raises SlurmUnreachable when it does not answer."""
    found: list[When] = []
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        path = Path(temporary) / "script.sbatch"
        for partition in partitions[:MOST_ASKED]:
            path.write_text(script_for(partition), encoding="utf-8")
            found.append(When(partition, slurm.estimate(path, cwd=folder)))
    return found
