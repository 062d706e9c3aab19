"""What is proposed: an amount for the next request with its reason, and the roundest way to say it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from slurmgpu.models.units import Duration, Memory

__all__ = [
    "HEAD_ROOM",
    "MEMORY_STEPS",
    "TIME_STEPS",
    "Advice",
    "Part",
    "Proposal",
    "memory_text",
    "rounded_up",
]

HEAD_ROOM = 1.2
"""Above a peak, and above the time that the job took."""
MEMORY_STEPS = [step << 20 for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)] + [
    step << 30 for step in (1, 2, 4, 8, 16, 32, 64)
]
TIME_STEPS = (60, 300, 600, 900, 1800, 3600, 2 * 3600, 4 * 3600, 6 * 3600, 12 * 3600, 86400)

Field = Literal["memory", "cpus", "gpus", "time", "workers", "accumulate"]


@dataclass(frozen=True)
class Proposal:
    """One line of the next request."""

    field: Field
    asked: int | None
    """Bytes on each node, CPUs in all, GPUs in all, seconds, loader workers of a process, micro-batches; None: no limit."""
    proposed: int
    why: str
    gpus: tuple[int, int] = (0, 0)
    """Of CPUs: the GPUs that it had, and those of the next request, to which they belong; 0: none."""
    unsaid: bool = False
    """Whether the job says nothing of it, so that the site's default holds."""

    @property
    def key(self) -> str:
        """What it is called in a job file."""
        return self.field if self.field != "cpus" else "cpus_per_gpu" if all(self.gpus) else "cpus"

    @property
    def change(self) -> tuple[str, str]:
        """Both amounts as a job file has them, what it was and what it is to be."""
        if self.key != "cpus_per_gpu":
            return "not given" if self.unsaid else self.spelled(self.asked), self.spelled(self.proposed)
        before = (self.asked or 0) / self.gpus[0]
        return f"{before:g}", str(math.ceil(self.proposed / self.gpus[1]))

    @property
    def more(self) -> bool:
        """Whether it asks for more than before."""
        return self.asked is not None and self.proposed > self.asked

    def spelled(self, amount: int | None) -> str:
        """An amount as a job file has it."""
        if self.field == "memory":
            return "not known" if amount is None else memory_text(amount)
        if self.field == "time":
            return str(Duration(amount))
        return "not known" if amount is None else str(amount)


@dataclass(frozen=True)
class Advice:
    """What to ask for next time, and why nothing is proposed where nothing is."""

    proposals: tuple[Proposal, ...] = ()
    remarks: tuple[str, ...] = ()
    """What should be looked at, where no request would mend it."""


@dataclass(frozen=True)
class Part:
    """What is known of the rest of a job of which a probe ran a part, and stopped it on purpose."""

    seconds: float | None
    """That the whole takes; None: not known."""
    how: str
    """How that is known, or why it is not."""
    cpus: float | None = None
    """In use in the second half of what ran: a start that reads and compiles tells little of the rest."""
    grows: bool = False
    """Whether its memory was still growing when it was stopped."""
    starts_again: bool = False
    """Whether the job goes on in another start at its time limit."""
    begun: bool = True
    """False: it is a training that had not begun yet, so that what was in use tells nothing of it."""
    unseen: tuple[str, ...] = ()
    """What the job will do, and has not done in this part."""


def memory_text(size: int) -> str:
    """Bytes as sbatch takes them: whole M or G."""
    return str(Memory(math.ceil(size / 2**20)))


def rounded_up(amount: float, steps: tuple[int, ...] | list[int], most: float = 0.05) -> int:
    """The roundest amount that is no less, and no more than this share above it; steps rise."""
    rounded = (math.ceil(amount / step) * step for step in reversed(steps))
    return next(
        (one for one in rounded if one <= amount * (1 + most)), math.ceil(amount / steps[0]) * steps[0]
    )
