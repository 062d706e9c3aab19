"""Many jobs added up: by user, account, partition and type of GPU; what came to nothing, and how jobs ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurmgpu.models.run import JobState
from slurmgpu.monitoring.reporting.figures import LOST, Figures
from slurmgpu.monitoring.reporting.gathering import JobReport

__all__ = ["GROUPS", "Summary", "Sums", "summed"]

MOST_WASTES = 10


@dataclass
class Sums:
    """Jobs of one kind together; hours are those of all their starts."""

    jobs: int = 0
    """Tasks of arrays count one by one."""
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    wasted_gpu_hours: float = 0.0
    failed: int = 0
    """Those that failed, ran out of memory or time, or lost their node; not those that somebody cancelled."""
    energy: float = 0.0
    """Joules of those whose energy is known."""
    energy_known: int = 0
    _cpu: list[float] = field(default_factory=lambda: [0.0, 0.0], repr=False)
    _memory: list[float] = field(default_factory=lambda: [0.0, 0.0], repr=False)
    _gpu: list[float] = field(default_factory=lambda: [0.0, 0.0], repr=False)

    def add(self, one: Counted) -> None:
        """Count a job in."""
        self.jobs += one.tasks
        self.gpu_hours += one.gpu_hours
        self.cpu_hours += one.cpu_hours
        self.wasted_gpu_hours += one.wasted_gpu_hours
        self.failed += one.failed
        if one.energy is not None:
            self.energy += one.energy
            self.energy_known += one.tasks
        # A day on a whole node counts for more than a minute on one CPU.
        _weigh(self._cpu, one.cpu_share, one.cpu_hours)
        _weigh(self._memory, one.memory_share, one.memory_seconds)
        _weigh(self._gpu, one.gpu_busy, one.gpu_hours)

    @property
    def cpu_share(self) -> float | None:
        """Of the CPU-hours, where it is known."""
        return _mean(self._cpu)

    @property
    def memory_share(self) -> float | None:
        """Of the memory, by memory and time."""
        return _mean(self._memory)

    @property
    def gpu_share(self) -> float | None:
        """Of the GPU-hours that were sampled."""
        return _mean(self._gpu)

    @property
    def gpu_hours_sampled(self) -> float:
        """The GPU-hours of which the use is known."""
        return self._gpu[1]


class Counted(NamedTuple):
    """What of a job is added up, worked out once for all groups that it belongs to."""

    tasks: int
    failed: int
    gpu_hours: float
    cpu_hours: float
    wasted_gpu_hours: float
    energy: float | None
    cpu_share: float | None
    memory_share: float | None
    memory_seconds: float
    gpu_busy: float | None

    @classmethod
    def of(cls, one: Figures) -> Counted:
        """A job's share of the sums."""
        return cls(
            one.tasks,
            one.tasks if one.job.state in _FAILED else 0,
            one.gpu_hours or 0.0,
            one.cpu_hours or 0.0,
            one.wasted_gpu_hours,
            one.energy,
            one.cpu_share,
            one.memory_share,
            float((one.memory or 0) * one.held_seconds),
            one.gpu_busy,
        )


_FAILED = LOST | {JobState.TIMEOUT}
_WELL = frozenset({JobState.COMPLETED, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})


def _weigh(sums: list[float], share: float | None, weight: float | None) -> None:
    if share is not None and weight:
        sums[0] += share * weight
        sums[1] += weight


def _mean(sums: list[float]) -> float | None:
    return sums[0] / sums[1] if sums[1] else None


def _gpu_type(one: Figures) -> str:
    if not one.job.gpus:
        return "no GPU"
    return ",".join(sorted(one.job.gpu_types)) or "not named"


GROUPS: dict[str, Callable[[Figures], str]] = {
    "user": lambda one: one.job.user or "not named",
    "account": lambda one: one.job.account or "not named",
    "partition": lambda one: one.job.partition or "not named",
    "gpu_type": _gpu_type,
}
"""By what jobs are added up."""


@dataclass(frozen=True)
class Summary:
    """All of it."""

    total: Sums
    groups: dict[str, dict[str, Sums]]
    """By user, account, partition and type of GPU; the most GPU-hours first."""
    states: dict[str, Sums]
    """By how they ended, those that did not end well."""
    wastes: tuple[JobReport, ...]
    """What wasted the most GPU-hours, the most first."""


def summed(each: Sequence[Figures], jobs: Sequence[JobReport]) -> Summary:
    """Add every job up, each once; ``jobs`` are the same with arrays taken together, for the list of wastes."""
    total = Sums()
    groups: dict[str, dict[str, Sums]] = {name: {} for name in GROUPS}
    states: dict[str, Sums] = {}
    for one in each:
        counted = Counted.of(one)
        total.add(counted)
        for name, key in GROUPS.items():
            groups[name].setdefault(key(one), Sums()).add(counted)
        if one.job.state not in _WELL:
            states.setdefault(one.job.state.value, Sums()).add(counted)
    worst = sorted((one for one in jobs if one.figures.wasted_gpu_hours > 0), key=_waste)[:MOST_WASTES]
    return Summary(
        total, {name: _ordered(group) for name, group in groups.items()}, _ordered(states), tuple(worst)
    )


def _waste(one: JobReport) -> float:
    return -one.figures.wasted_gpu_hours


def _ordered(group: dict[str, Sums]) -> dict[str, Sums]:
    def key(item: tuple[str, Sums]) -> tuple[float, float, str]:
        return -item[1].gpu_hours, -item[1].cpu_hours, item[0]

    return dict(sorted(group.items(), key=key))
