"""A job's request and its use, by accounting, its samples and its metrics; None is "not known", never zero."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.jobs.table import known
from slurmgpu.jobs.view import STOPPED
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import History, Sampling, Start, Step
from slurmgpu.training.formats.metrics import (
    METRICS_FILE,
    METRICS_SCHEMA,
    MetricsRow,
    intervals_of,
    kept_intervals,
    metrics_rows,
)
from slurmgpu.training.formats.rows import Row, opened, part, rows_in, whole
from slurmgpu.training.formats.run_files import ORDERLY

if TYPE_CHECKING:
    from slurmgpu.models.run import SampleSummary

__all__ = [
    "LEAST_SAMPLES", "LEAST_SECONDS", "LOST", "Figures", "Peak", "Training", "figures_of", "read_rows", "read_training",
    "together", "training_of",
]  # fmt: skip


LARGEST = 64 << 20
"""Bytes that are read; of a longer file the end, where what counts stands."""


@dataclass(frozen=True)
class Training:
    """A training by its metrics; None is "not measured"."""

    steps: int | None = None
    """The newest step."""
    total_steps: int | None = None
    losses: tuple[tuple[int, float], ...] = ()
    """Step and loss of each line that counts, in the order of the steps."""
    loader_wait: float | None = None
    """Part of the step time spent waiting for a batch, 0 to 1, over all steps that count."""
    kept_seconds: float | None = None
    """Time of the steps that count: those that no later start repeated."""
    repeated_seconds: float = 0.0
    """Time of the steps that a later start repeated."""
    steps_of_last_start: int | None = None
    seconds_of_last_start: float | None = None
    """From its first line to its newest."""
    world_size: int | None = None
    workers: int | None = None
    """Loader workers of each process, where the settings name a number."""
    stopped: bool = False
    """True if it stopped in good order, with everything saved."""
    saved_seconds: float = 0.0
    """Time of the steps that count and that the newest checkpoint has."""
    whole: bool = True
    """True if all of it was read, and is the job's alone."""


def read_training(run_dir: Path) -> Training | None:
    """Return the training in a run directory; None where there is none."""
    found = read_rows(run_dir)
    return None if found is None else training_of(found[0], whole_file=found[1])


def read_rows(run_dir: Path) -> tuple[Iterator[MetricsRow], bool] | None:
    """Return the rows of a run directory's metrics, and whether they are all; None where there is no such file."""
    try:
        with opened(run_dir / METRICS_FILE, METRICS_SCHEMA) as file:
            text, all_of_it = file.end(LARGEST), file.size <= LARGEST
    except OSError:
        return None
    return metrics_rows(rows_in(text, METRICS_SCHEMA)), all_of_it


def training_of(rows: Iterable[MetricsRow], *, whole_file: bool = True) -> Training | None:
    """Add the rows up."""
    rows = list(rows)
    intervals = list(intervals_of(rows))
    total: int | None = None
    stopped = False
    restart, at, saved = -1, 0, 0
    first_time = last_time = None
    resumed = 0
    begun: Row = {}
    for row in rows:
        if row.restart > restart:
            restart, first_time, resumed, at = row.restart, row.time, row.step, row.step
        last_time, stopped = row.time, False
        if row.kind == "start":
            at, resumed, begun = row.step, row.step, row.values
            total = whole(row.values.get("total_steps")) or total
        elif row.kind == "train" and row.step > at:
            at = row.step
        elif row.kind == "end":
            stopped = row.values.get("reason") in ORDERLY
        elif row.kind == "checkpoint":
            saved = row.step
    if restart < 0:
        return None
    kept = kept_intervals(intervals)
    known = [one for one in kept if one.waited is not None and one.seconds > 0]
    seconds = sum(one.seconds for one in known)
    return Training(
        steps=at,
        total_steps=total,
        losses=tuple((one.last, one.loss) for one in kept if one.loss is not None),
        loader_wait=sum(one.waited or 0.0 for one in known) / seconds if seconds else None,
        kept_seconds=sum(one.seconds for one in kept) if kept else None,
        repeated_seconds=sum(one.seconds for one in intervals) - sum(one.seconds for one in kept),
        steps_of_last_start=at - resumed,
        seconds_of_last_start=last_time - first_time
        if last_time is not None and first_time is not None
        else None,
        world_size=whole(begun.get("world_size")),
        workers=whole(part(begun, "settings").get("workers")),
        stopped=stopped,
        saved_seconds=sum(one.seconds * one.share_up_to(saved) for one in kept),
        whole=whole_file,
    )


LEAST_SECONDS = 60
"""A run that is shorter tells little of the next one."""
LEAST_SAMPLES = 10
"""So many samples of Slurm's must have been taken before its peak counts."""
IDLE = 0.02
"""A GPU of which no more than this share was busy did nothing."""
CONTEXT_BYTES = 600 << 20
"""More than CUDA itself holds on a GPU that does nothing."""

# The first GPU counts alone were counted before it (Slurm's changelog, 24.05.1).
GPU_USE_FROM = (24, 5, 1)


@dataclass(frozen=True)
class Peak:
    """The most memory in use on one node, bytes."""

    amount: int
    exact: bool
    """False: at most this much, since several tasks shared a node and each one's peak alone is known."""
    source: str
    """`samples` or `sacct`."""
    node: str | None = None
    trusted: bool = True
    """True if it was sampled often enough to say that there was no higher one."""


@dataclass
class Figures:
    """One job's request and use; of a requeued one, the use of its last start.

    `figures_of` and `together` fill it in, and nobody changes it afterwards.
    """

    job: JobStatus
    starts: int = 1
    seconds_before: int = 0
    """Elapsed time of the starts before the last one."""
    held_seconds: int = 0
    """Elapsed time of all starts; of an array, of all its tasks."""
    wasted_gpu_hours: float = 0.0
    """GPU-hours that are known to be lost: failed starts, repeated steps, and GPUs that did nothing."""
    tasks: int = 1
    """Tasks of an array that these figures stand for: the largest of each, and the sum of hours."""
    ends: tuple[tuple[JobState, int], ...] = ()
    """Of an array: how many of its tasks are in which state."""
    # asked for, and given
    memory: int | None = None
    """On each node, bytes."""
    # used
    cpu_seconds: float | None = None
    peak: Peak | None = None
    gpu_busy: float | None = None
    """Share of the time, the mean over all its GPUs, 0 to 1."""
    sm_activity: float | None = None
    """Share of its GPUs' SMs that were busy, the mean over time, 0 to 1."""
    gpu_busiest: float | None = None
    """Slurm's highest sample, where it is worth something."""
    gpu_memory_peak: int | None = None
    """The most in any of its GPUs, bytes."""
    gpu_memory_total: int | None = None
    """Of that GPU, bytes."""
    gpus_sampled: int = 0
    idle_gpus: tuple[str, ...] = ()
    """Those that did nothing at all: host:index."""
    energy: float | None = None
    """Joules."""
    energy_of: str = ""
    """Measured at the `nodes` or the `GPUs`."""
    sampled_seconds: float | None = None
    training: Training | None = None
    steps: int = 0
    """Steps that accounting has of it."""
    sampling: Sampling = field(default_factory=Sampling)
    """Slurm's way of measuring it."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Figures that cannot be known, and why."""
        return tuple(_doubts(self))

    @property
    def gpu_hours(self) -> float | None:
        """Of all starts: the GPUs that it held, busy or not."""
        return None if self.job.gpus is None else self.job.gpus * self.held_seconds / 3600

    @property
    def cpu_hours(self) -> float | None:
        """Of all starts: the CPUs that it held."""
        return None if self.job.cpus is None else self.job.cpus * self.held_seconds / 3600

    @property
    def cpus_busy(self) -> float | None:
        """CPUs in use, the mean over the last start."""
        elapsed = self.job.elapsed
        return self.cpu_seconds / elapsed if self.cpu_seconds is not None and elapsed else None

    @property
    def cpu_share(self) -> float | None:
        """Of the CPUs that it had, 0 to 1."""
        return self.cpus_busy / self.job.cpus if self.cpus_busy is not None and self.job.cpus else None

    @property
    def memory_share(self) -> float | None:
        """Of the memory that it had on the fullest node."""
        return self.peak.amount / self.memory if self.peak is not None and self.memory else None

    @property
    def over_memory(self) -> bool:
        """True if more than it asked for is known to have been in use: Slurm may have ended it for that, in any state."""
        peak = self.peak
        return peak is not None and peak.exact and self.memory is not None and peak.amount > self.memory

    @property
    def time_share(self) -> float | None:
        """Of the time limit."""
        limit, elapsed = self.job.limit, self.job.elapsed
        return elapsed / limit if isinstance(limit, int) and limit and elapsed is not None else None

    @property
    def goodput(self) -> float | None:
        """Time of the steps that were kept, of all the time that it held its nodes; of trainings of slurmgpu's own."""
        kept = None if self.training is None or not self.training.whole else self.training.kept_seconds
        return min(1.0, kept / self.held_seconds) if kept is not None and self.held_seconds else None


LOST = frozenset({
    JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.DEADLINE,
})  # fmt: skip
"""Ends of which nothing is left, as far as Slurm knows; a job at its time limit may go on from a checkpoint."""


def figures_of(
    history: History,
    sampling: Sampling,
    samples: SampleSummary | None = None,
    training: Training | None = None,
) -> Figures:
    """Add up what is known of a job."""
    start, job = history.last, history.job
    nodes = job.nodes or 1
    energies = [one.energy for one in history.starts if one.job.elapsed]
    before = sum(one.job.elapsed or 0 for one in history.starts[:-1])
    found = Figures(
        job,
        starts=sum(one.job.start is not None for one in history.starts) or 1,
        seconds_before=before,
        held_seconds=before + (job.elapsed or 0),
        memory=None if start.memory is None else start.memory // nodes,
        cpu_seconds=start.cpu_seconds,
        peak=_peak_by_slurm(start, sampling),
        energy=float(sum(known(energies))) if energies and None not in energies else None,
        energy_of="nodes",
        training=training,
        steps=len(start.steps),
        sampling=sampling,
    )
    if job.gpus and sampling.told and (not sampling.release or sampling.release >= GPU_USE_FROM):
        found.gpu_busiest = max(known(one.gpu_busiest for one in start.steps), default=None)
        found.gpu_memory_peak = max(known(one.gpu_memory for one in start.steps), default=None)
    if samples is not None:
        _add_samples(found, samples)
    # A job at its time limit, or one that was cancelled, may have left what it was for.
    gpus = job.gpus or 0
    if job.state in LOST and job.exit_code != STOPPED and not (training is not None and training.stopped):
        kept = 0.0 if training is None else training.saved_seconds
        found.wasted_gpu_hours = gpus * max(0.0, found.held_seconds - kept) / 3600
    else:
        lost = before if training is None else training.repeated_seconds
        found.wasted_gpu_hours = (gpus * lost + len(found.idle_gpus) * (job.elapsed or 0)) / 3600
    return found


def _peak_by_slurm(start: Start, sampling: Sampling) -> Peak | None:
    """Return the most that the steps that ran at one time can have held on a node.

    Slurm keeps the largest task of each step: with several tasks on a node, their sum is at most so many times that.
    """
    steps = [step for step in start.steps if step.max_rss is not None]
    if not steps:
        return None
    fullest = _at_the_fullest(steps)
    shared = any(_tasks_on_a_node(one) > 1 for one in fullest)
    several = len([step for step in steps if step.step != "extern"]) > 1
    return Peak(
        sum(map(_on_a_node, fullest)),
        not shared and not (several and (start.job.nodes or 1) > 1),
        "sacct",
        max(fullest, key=_on_a_node).max_rss_node,
        sampling.seconds > 0 and (start.job.elapsed or 0) >= LEAST_SAMPLES * sampling.seconds,
    )


def _at_the_fullest(steps: list[Step]) -> list[Step]:
    """Return the steps that ran at the moment when those that ran could hold most; in time that grows as n log n."""
    if len(steps) == 1:
        return steps
    timed = [one for one in steps if one.start is not None]
    always = [one for one in steps if one.start is None]
    events = [(one.start, 1, _on_a_node(one)) for one in timed]
    ended = (one for one in timed if one.end is not None and one.end != one.start)
    events += [(one.end, 0, -_on_a_node(one)) for one in ended]
    now = most = 0
    when = None
    for moment, begins, amount in sorted(events, key=lambda event: event[:2]):
        now += amount
        if begins and now > most:
            most, when = now, moment
    return always + [
        one
        for one in timed
        if when is None
        or (
            (one.start is not None and one.start <= when)
            and (one.end is None or when < one.end or one.end == one.start == when)
        )
    ]


def _tasks_on_a_node(step: Step) -> int:
    return math.ceil((step.tasks or 1) / (step.nodes or 1))


def _on_a_node(step: Step) -> int:
    return (step.max_rss or 0) * _tasks_on_a_node(step)


def _add_samples(found: Figures, samples: SampleSummary) -> None:
    """The samples' word counts where they have one: they are ours, and finer than Slurm's."""
    gpus, asked = samples.gpus, found.job.gpus or 0
    covers = samples.seconds >= 0.9 * found.held_seconds - LEAST_SECONDS
    busy = [gpu.utilisation_mean for gpu in gpus if gpu.utilisation_mean is not None]
    found.sampled_seconds, found.gpus_sampled = samples.seconds, len(busy)
    if busy and covers and len(busy) == len(gpus) == asked:
        found.gpu_busy = sum(busy) / len(busy)
        found.sm_activity = samples.sm_activity
        found.idle_gpus = tuple(
            f"{gpu.host}:{gpu.index}"
            for gpu in gpus
            if (gpu.utilisation_mean or 0) <= IDLE and (gpu.memory_peak or 0) <= CONTEXT_BYTES
        )
    fullest = max(gpus, key=lambda gpu: gpu.memory_peak or 0, default=None)
    if fullest is not None and fullest.memory_peak is not None:
        found.gpu_memory_peak, found.gpu_memory_total = fullest.memory_peak, fullest.memory_total
    if found.energy is None and samples.energy is not None and len(gpus) == asked:
        found.energy, found.energy_of = samples.energy, "GPUs"
    if samples.rss_peak and samples.hosts >= (found.job.nodes or 1):
        known = found.peak.amount if found.peak is not None and found.peak.exact else 0
        found.peak = Peak(max(samples.rss_peak, known), True, "samples", None, covers)


def _doubts(found: Figures) -> Iterator[str]:
    """Yield what is not known of a job that has run, and why."""
    job, sampling = found.job, found.sampling
    if not job.elapsed:
        return
    if found.peak is None:
        yield f"memory: {_unmeasured(found)}"
    elif not found.peak.trusted:
        every = f"every {sampling.seconds} s" if sampling.seconds else "at a task's end only"
        told = "" if sampling.told else " (its default; slurmctld was not asked)"
        yield (
            f"memory: the true peak may be higher: Slurm samples {every}{told}, and the job ran for {job.elapsed} s"
            if found.peak.source == "sacct"
            else "memory: the true peak may be higher: not all of the run was sampled"
        )
    elif not found.peak.exact:
        yield "memory: at most this much on a node: of tasks that share one, Slurm keeps the largest alone"
    if found.cpu_seconds is None:
        yield f"CPUs: {_unmeasured(found)}"
    if job.gpus and found.gpu_busy is None:
        slurm = "" if found.gpu_busiest is None else "; Slurm keeps the highest sample, and no mean"
        yield f"GPU use: {_unsampled(found)}{slurm}"
    if found.energy is None:
        yield "energy: neither the nodes nor the samples measured it"


def _unsampled(found: Figures) -> str:
    """Return why the samples do not tell how busy the GPUs were."""
    if found.sampled_seconds is None:
        return "the job took no samples"
    if not found.gpus_sampled:
        return "its samples saw no GPU: neither NVML nor a vendor's tool told of one"
    if found.gpus_sampled != found.job.gpus:
        return f"{found.gpus_sampled} of {found.job.gpus} GPUs were sampled"
    return f"{round(found.sampled_seconds)} s of the run were sampled"


def _unmeasured(found: Figures) -> str:
    if found.sampling.told and not found.sampling.gathers:
        return "this Slurm measures no tasks (JobAcctGatherType)"
    if found.job.source == "squeue" or not found.steps:
        return "accounting has no steps of it"
    if not found.job.state.is_final:
        return "accounting hears of it only when a step has ended"
    return "Slurm measured nothing of its steps"


def together(tasks: Sequence[Figures]) -> Figures:
    """Return tasks of an array as one: the largest of what they used, so that what fits it fits each of them."""
    first = tasks[0]
    if len(tasks) == 1:
        return first
    # An array is asked for as a whole: the tasks that ended well say what each needs.
    good = [one for one in tasks if one.job.state is JobState.COMPLETED] or list(tasks)
    longest = max(good, key=lambda one: one.job.elapsed or 0)
    # What was ended for its memory says what the others' request is too small for.
    full = [*good, *(one for one in tasks if one.over_memory)]
    fullest = max(full, key=lambda one: one.peak.amount if one.peak else 0)
    busiest = max(good, key=lambda one: one.cpus_busy or 0.0)
    energies = [one.energy for one in tasks if one.energy is not None]
    trusted = all(one.peak is not None and one.peak.trusted for one in good)
    ends = Counter(one.job.state for one in tasks)
    state = next((state for state in _COUNTS_FIRST if ends[state]), next(iter(ends)))
    update = {"job_id": str(first.job.array_job_id or first.job.job_id), "state": state}
    return replace(
        longest,
        job=longest.job.model_copy(update=update),
        tasks=len(tasks),
        ends=tuple(ends.most_common()),
        starts=sum(one.starts for one in tasks),
        held_seconds=sum(one.held_seconds for one in tasks),
        wasted_gpu_hours=sum(one.wasted_gpu_hours for one in tasks),
        cpu_seconds=None if busiest.cpus_busy is None else busiest.cpus_busy * (longest.job.elapsed or 0),
        peak=None if fullest.peak is None else replace(fullest.peak, trusted=trusted),
        energy=sum(energies) if len(energies) == len(tasks) else None,
    )


# What its next request follows from: a task that needed more, then one that has not ended, then those that ended well.
_COUNTS_FIRST = (
    JobState.OUT_OF_MEMORY, JobState.TIMEOUT, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.CONFIGURING,
    JobState.PENDING, JobState.REQUEUED, JobState.COMPLETED,
)  # fmt: skip
