"""A job's report as rows and sentences, and many jobs added up by user, account, partition and type of GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurmgpu.amounts import amount, count, duration, energy, percent, size_text
from slurmgpu.jobs.report.advising import memory_text
from slurmgpu.jobs.report.figures import LOST, Figures
from slurmgpu.jobs.report.gathering import JobReport
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobState
from slurmgpu.models.site import Carbon

__all__ = [
    "GROUPS",
    "Row",
    "Summary",
    "Sums",
    "carbon_grams",
    "costs",
    "head",
    "rows",
    "sentences",
    "state_of",
    "summed",
]


class Row(NamedTuple):
    """One resource: what was asked for, what was used of it, and the share; None: not known."""

    what: str
    asked: str
    used: str
    share: float | None = None


def head(report: JobReport) -> tuple[str, str]:
    """Return which job it is; and how it ended, where, and whose it is."""
    job, figures = report.figures.job, report.figures
    tasks = f" ({count(figures.tasks, 'task')})" if figures.tasks > 1 else ""
    state = job.state.value if job.state is not JobState.UNKNOWN else "state unknown"
    if len(figures.ends) > 1:
        state = ", ".join(f"{number:,} {one.value}" for one, number in figures.ends)
    if report.part is not None:
        state = "stopped by the probe, as planned,"
    after = f" after {duration(job.elapsed)}" if job.elapsed is not None and not figures.ends else ""
    said = None if figures.ends or report.part is not None else reason(job)
    why = f", {said}" if said else ""
    named = {"partition": job.partition, "account": job.account, "user": job.user}
    where = "".join(f"; {what} {name}" for what, name in named.items() if name)
    return f"job {job.job_id}{tasks}: {job.name}", f"{state}{after}{why}{where}"


def state_of(figures: Figures) -> str:
    """Return a job's state in a cell; of an array, how many of its tasks did not end well, and how."""
    bad = [(state, number) for state, number in figures.ends if state is not JobState.COMPLETED]
    if len(figures.ends) < 2 or not bad:
        return figures.job.state.value
    state, number = bad[0]
    return f"{number}/{figures.tasks} {state.value}"


def rows(figures: Figures) -> list[Row]:
    """Return what was asked for and what was used."""
    return list(_rows(figures))


def _rows(one: Figures) -> Iterator[Row]:
    job = one.job
    each = " each" if one.tasks > 1 else ""
    if job.gpus:
        types = ",".join(sorted(job.gpu_types))
        busy = "unknown" if one.gpu_busy is None else f"{one.gpu_busy * job.gpus:.1f} busy on average"
        if one.gpu_busy is None and one.gpu_busiest is not None:
            busy = f"unknown; {percent(one.gpu_busiest)} in the highest sample"
        yield Row("GPUs", f"{job.gpus} {types}".strip() + each, busy, one.gpu_busy)
        if one.sm_activity is not None:
            yield Row("SMs of them", "", f"{percent(one.sm_activity)} busy on average", one.sm_activity)
        if one.gpu_memory_peak is not None:
            total = one.gpu_memory_total
            share = one.gpu_memory_peak / total if total else None
            yield Row(
                "GPU memory",
                size_text(total) if total else "not known",
                f"{size_text(one.gpu_memory_peak)} at the peak",
                share,
            )
    cpus = "unknown" if one.cpus_busy is None else f"{amount(one.cpus_busy)} busy on average"
    yield Row("CPUs", ("not known" if job.cpus is None else str(job.cpus)) + each, cpus, one.cpu_share)
    yield Row("memory", _memory(one, each), _peak(one), one.memory_share)
    limit = (
        "not known" if job.limit is None else job.limit if isinstance(job.limit, str) else duration(job.limit)
    )
    yield Row(
        "time", limit + each, "unknown" if job.elapsed is None else duration(job.elapsed), one.time_share
    )


def _memory(one: Figures, each: str) -> str:
    if one.memory is None:
        return "not known"
    return memory_text(one.memory) + (" a node" if (one.job.nodes or 1) > 1 else "") + each


def _peak(one: Figures) -> str:
    if one.peak is None:
        return "unknown"
    bound = "" if one.peak.exact else "at most "
    return f"{bound}{size_text(one.peak.amount)} at the {'sampled ' if not one.peak.trusted else ''}peak"


def costs(one: Figures, carbon: Carbon | None) -> list[str]:
    """Return what it took in hours and energy."""
    said = []
    if one.gpu_hours:
        said.append(f"{amount(one.gpu_hours)} GPU-hours")
    if one.cpu_hours:
        said.append(f"{amount(one.cpu_hours)} CPU-hours")
    if one.energy is not None:
        said.append(
            f"{energy(one.energy)} of {'its nodes, whole' if one.energy_of == 'nodes' else 'its GPUs alone'}"
        )
        grams = carbon_grams(one, carbon)
        if grams is not None and carbon is not None:
            said.append(
                f"{_mass(grams)} of CO2 at {carbon.grams_per_kwh:g} g/kWh ({carbon.source.text}, {carbon.source.date})"
            )
    return said


def carbon_grams(one: Figures, carbon: Carbon | None) -> float | None:
    """Grams of CO2 equivalent; None where the energy or the site's electricity is not known."""
    return None if one.energy is None or carbon is None else one.energy / 3.6e6 * carbon.grams_per_kwh


def _mass(grams: float) -> str:
    return f"{grams / 1000:.3g} kg" if grams >= 1000 else f"{grams:.3g} g"


def sentences(report: JobReport) -> list[str]:
    """Return what the figures say, and what is not known; the proposals stand by themselves."""
    advice = report.advice
    told = any(
        "the loader waits" in text for text in (*advice.remarks, *(one.why for one in advice.proposals))
    )
    return [*_restarts(report.figures), *([] if told else _loader(report.figures)), *advice.remarks]


def _restarts(one: Figures) -> Iterator[str]:
    training = one.training
    left_out = one.tasks - dict(one.ends).get(JobState.COMPLETED, one.tasks)
    if left_out and left_out < one.tasks:
        yield f"what tasks used is taken from the {one.tasks - left_out} that completed"
    if one.starts > one.tasks:
        lost = f", {duration(one.seconds_before)} of its time before the last one" if one.tasks == 1 else ""
        yield f"{count(one.starts - one.tasks, 'restart')}{lost}"
    if one.goodput is not None:
        repeated = training.repeated_seconds if training else 0
        of = f"; {duration(repeated)} were repeated after a restart" if repeated else ""
        yield f"{percent(one.goodput)} of the time went into steps that were kept{of}"


def _loader(one: Figures) -> Iterator[str]:
    wait = one.training.loader_wait if one.training else None
    if wait is not None:
        yield f"the loader waits {percent(wait)} of each step"


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
        """Return a job's share of the sums."""
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
