"""A job that waits, and what its reason's subject needs to tell of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.select import scripts_of
from slurmgpu.monitoring.why.answer import Fact, Mend
from slurmgpu.monitoring.why.options import as_asked

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, PartitionNow, Present, QueuedJob

__all__ = ["Case", "Told"]

Told = Iterator[Fact | Mend]
"""What a subject yields."""


@dataclass
class Case:
    """A job that waits, what it asks for, and where to look for more."""

    job: JobStatus
    asked: Asked
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
        found = (
            (self.present.reservations or {}).get(self.asked.reservation) if self.asked.reservation else None
        )
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
        """The command that changes the waiting job."""
        return f"scontrol update JobId={self.id} {option}={shlex.quote(value)}"

    def again(self, *options: str) -> str:
        """The commands that take it out of the queue and submit it in another way, with all else that it asks for."""
        script = self.asked.script or self.job.script
        if script is None or scripts_of(self.job):
            return f"slurmgpu cancel {self.id}  # then submit its job file again with {' '.join(options)}"
        names = {one.partition("=")[0] for one in options}
        if "--gpus" in names:
            names |= {"--gpus-per-node"}
        words = [*as_asked(self.asked, self.job, without=names), *options]
        return f"slurmgpu cancel {self.id} && sbatch {shlex.join(words)} {shlex.quote(script.split()[0])}"
