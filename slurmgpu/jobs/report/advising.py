"""The next request: what a job should ask for, by rules that state their headroom, and never from what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slurmgpu.amounts import amount, duration, percent, size_text
from slurmgpu.jobs.report.figures import LEAST_SECONDS, Figures
from slurmgpu.models.run import JobState
from slurmgpu.models.units import Duration, Memory

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Cluster

__all__ = [
    "HEAD_ROOM", "MEMORY_STEPS", "TIME_STEPS", "Advice", "Part", "Proposal", "advise", "memory_option", "rounded_up",
]  # fmt: skip

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
    """True if the job says nothing of it, so that the site's default holds."""

    @property
    def key(self) -> str:
        """Its key in a job file."""
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
        """True if it asks for more than before."""
        return self.asked is not None and self.proposed > self.asked

    def spelled(self, amount: int | None) -> str:
        """Return an amount as a job file has it."""
        if self.field == "memory":
            return "not known" if amount is None else memory_option(amount)
        if self.field == "time":
            return str(Duration(amount))
        return "not known" if amount is None else str(amount)


@dataclass(frozen=True)
class Advice:
    """The next request, and why nothing is proposed where nothing is."""

    proposals: tuple[Proposal, ...] = ()
    remarks: tuple[str, ...] = ()
    """Remarks on what no request would mend."""


@dataclass(frozen=True)
class Part:
    """The rest of a job of which a probe ran a part, as far as it is known."""

    seconds: float | None
    """Seconds that the whole training takes; None: not known."""
    how: str
    """The reason for this figure, or for its absence."""
    cpus: float | None = None
    """In use in the second half of what ran: a start that reads and compiles tells little of the rest."""
    grows: bool = False
    """True if its memory was still growing when it was stopped."""
    starts_again: bool = False
    """True if the job goes on in another start at its time limit."""
    begun: bool = True
    """False: it is a training that had not begun yet, so that what was in use tells nothing of it."""
    unseen: tuple[str, ...] = ()
    """Steps that the job will take, and has not taken in this part."""


def memory_option(size: int) -> str:
    """Return bytes as sbatch takes them: whole M or G."""
    return str(Memory(math.ceil(size / 2**20)))


def rounded_up(amount: float, steps: tuple[int, ...] | list[int], most: float = 0.05) -> int:
    """Return the roundest amount that is no less, and no more than this share above it; steps rise."""
    rounded = [math.ceil(amount / step) * step for step in reversed(steps)]
    return next((one for one in rounded if one <= amount * (1 + most)), rounded[-1])


CPU_HEAD_ROOM = 1.5
"""Above the mean of the CPUs in use: a mean hides bursts."""
MORE = 1.5
"""Factor for a job that was ended at a limit: how much it would have needed is not known."""
WORTH_IT = 0.8
"""A smaller request is proposed from this share of the present one on down."""
NEAR = 0.95
"""A job that came so close to a limit gets head room."""
WAITS = 0.1
"""A training whose loader waits for this share of a step is held up by it."""
FEW_SMS = 0.25
"""Kernels that keep fewer SMs busy than this are too small for the GPU."""
LEAST_MEMORY = 256 << 20
LEAST_TIME = 300
"""Seconds: a node that starts slowly takes some of them."""
LEAST_OF_A_PART = 30
"""Seconds: so long a job must have run before a part of it tells of the whole."""


def advise(found: Figures, cluster: Cluster | None = None, part: Part | None = None) -> Advice:
    """Return what follows from a job's figures. ``cluster`` tells how much there is at all.

    ``part``: the job was stopped on purpose, and this is known of its rest.
    """
    lines = list(_lines(found, cluster, part))
    proposals = tuple(one for one in lines if isinstance(one, Proposal))
    return Advice(proposals, tuple(one for one in lines if isinstance(one, str)))


def _lines(found: Figures, cluster: Cluster | None, part: Part | None) -> Iterator[Proposal | str]:
    job = found.job
    if job.state is JobState.OUT_OF_MEMORY:
        yield from _after_out_of_memory(found, cluster)
        return
    if job.state is JobState.TIMEOUT and part is None:
        yield from _after_timeout(found, cluster)
        return
    reason = _says_nothing(found, part)
    if reason:
        more = [] if part is not None or not job.state.is_final else [*_memory_of_more(found, cluster)]
        yield from more
        yield reason.replace("no request", "nothing else") if more else reason
        return
    lines = [*_gpus(found), *_memory(found, cluster, part is not None and part.grows)]
    fewer = (one.proposed for one in lines if isinstance(one, Proposal) and one.field == "gpus")
    gpus, late = next(fewer, job.gpus or 0), None if part is None else part.cpus
    busy = max((one for one in (found.cpus_busy, late) if one is not None), default=None)
    lines += _cpus(found, gpus, busy)
    lines += _time(found) if part is None else _time_of_all(found, part, cluster)
    proposed = {one.field: one for one in lines if isinstance(one, Proposal)}
    memory = proposed.get("memory")
    if memory is not None and not memory.more and "workers" in proposed:
        # What each more of the workers takes, nobody has measured yet.
        used = memory.why.partition(", ")[0]
        kept = f"memory stays as it is ({used}): more workers take more of it; look again once they run"
        lines = [kept if one is memory else one for one in lines]
    # A site that gives memory or CPUs by itself takes no request for them.
    dialect = cluster.dialect if cluster is not None else None
    given = {"memory"} if dialect is not None and dialect.memory == "none" else set()
    given |= {"cpus"} if dialect is not None and dialect.cpus == "none" else set()
    lines = [one for one in lines if isinstance(one, str) or one.field not in given]
    yield from lines
    # Memory that was asked for by CPU or GPU, or not at all, becomes less with them.
    proposed = {one.field: one for one in lines if isinstance(one, Proposal)}
    less = any(not proposed[name].more for name in ("cpus", "gpus") if name in proposed)
    if less and found.memory is not None and "memory" not in proposed:
        yield (
            f"keep {memory_option(found.memory)} of memory on a node: where it is asked for by CPU or GPU, or not at all, "
            "fewer of these bring less"
        )


def _says_nothing(found: Figures, part: Part | None) -> str | None:
    """Return why the run, or the part that ran, tells nothing of the next one."""
    job, elapsed = found.job, found.job.elapsed or 0
    if part is not None:
        if elapsed < LEAST_OF_A_PART:
            return f"no request is proposed: {elapsed} s tell too little of the whole job"
        return None if part.begun else f"no request is proposed: {part.how}"
    if not job.state.is_final:
        started = "it has not ended: what it needs in the end is not known yet"
        return started if elapsed else "it has not started"
    if job.state is not JobState.COMPLETED:
        return f"no smaller request is proposed: the job ended as {job.state.value}, so what a whole run needs is not known"
    if elapsed < LEAST_SECONDS:
        return f"no request is proposed: a run of {elapsed} s tells too little about the next one"
    return None


def _memory_of_more(found: Figures, cluster: Cluster | None) -> Iterator[Proposal | str]:
    """Yield what a job that used more than it asked for needs at least, however it ended and however coarsely it was sampled."""
    peak, asked = found.peak, found.memory
    if peak is None or asked is None or not found.over_memory:
        return
    why = f"it had {size_text(peak.amount)} in use, more than it asked for, and may need more in the end"
    largest = _most_memory(found, cluster)
    if largest is not None and largest <= peak.amount:
        yield f"{why}; no node of {found.job.partition} has more: use more nodes, or a smaller batch"
        return
    wanted = rounded_up(peak.amount * HEAD_ROOM, MEMORY_STEPS)
    wanted = wanted if largest is None else min(wanted, largest)
    yield Proposal("memory", asked, wanted, f"{why}: 20 % on top of that")


def _memory(found: Figures, cluster: Cluster | None, grows: bool) -> Iterator[Proposal | str]:
    """``grows``: the peak is that of a part, and was not the last one."""
    peak, asked = found.peak, found.memory
    if found.over_memory and not grows:
        yield from _memory_of_more(found, cluster)
        return
    if peak is None or not peak.trusted or asked is None:
        return
    if grows:
        yield f"its memory was still growing when it was stopped, at {size_text(peak.amount)}: how much it needs is not known"
        return
    wanted = rounded_up(peak.amount * HEAD_ROOM, MEMORY_STEPS)
    room = (
        "and 20 % on top"
        if wanted >= LEAST_MEMORY
        else f"and {size_text(LEAST_MEMORY)} is the least proposed"
    )
    wanted = max(LEAST_MEMORY, wanted)
    most = "" if peak.exact else "at most "
    if wanted <= WORTH_IT * asked:
        yield Proposal("memory", asked, wanted, f"{most}{size_text(peak.amount)} in use at the peak, {room}")
    elif peak.exact and peak.amount > NEAR * asked:
        largest = _most_memory(found, cluster)
        wanted = wanted if largest is None else min(wanted, largest)
        why = f"the peak of {size_text(peak.amount)} came close to it"
        if wanted > asked:
            yield Proposal("memory", asked, wanted, f"{why}: 20 % on top of that")
        else:
            yield f"memory: {why}, and no node of {found.job.partition} has more"


def _gpus(found: Figures) -> Iterator[Proposal | str]:
    gpus, idle = found.job.gpus or 0, len(found.idle_gpus)
    if not gpus or found.gpu_busy is None or (found.sampled_seconds or 0) < LEAST_SECONDS:
        return
    if idle == gpus:
        yield Proposal("gpus", gpus, 0, f"none of them did anything in {duration(found.job.elapsed)}")
    elif idle:
        named = ", ".join(found.idle_gpus[:4]) + (", ..." if idle > 4 else "")
        yield Proposal("gpus", gpus, gpus - idle, f"{idle} did nothing: {named}")
    elif found.gpu_busy < 0.3:
        wait = found.training.loader_wait if found.training else None
        held = "" if wait is None or wait < WAITS else f"; the loader waits {percent(wait)} of each step"
        yield f"the GPUs were busy {percent(found.gpu_busy)} of the time{held}"
    elif found.sm_activity is not None and found.sm_activity < FEW_SMS:
        yield (
            f"a kernel ran {percent(found.gpu_busy)} of the time, on {percent(found.sm_activity)} of the SMs: larger batches, "
            "or fused kernels (torch.compile), would use more of each GPU"
        )
    memory, total = found.gpu_memory_peak, found.gpu_memory_total
    if memory and total and idle < gpus and memory < 0.3 * total:
        yield f"{size_text(memory)} of {size_text(total)} was the most in any GPU's memory: a smaller GPU would hold it"


def _cpus(found: Figures, gpus: int, busy: float | None) -> Iterator[Proposal | str]:
    """``gpus``: those of the next request, of which each gets as many CPUs; ``busy``: the CPUs that were in use."""
    cpus, before = found.job.cpus, found.job.gpus or 0
    if busy is None or not cpus:
        return
    wait = found.training.loader_wait if found.training else None
    if wait is not None and wait >= WAITS:
        waits = f"the loader waits {percent(wait)} of each step"
        if busy >= 0.7 * cpus:
            wanted = _whole_shares(cpus / (1 - min(wait, 0.75)) * HEAD_ROOM, gpus)
            why = f"{waits}, with {percent(busy / cpus)} of the CPUs busy"
            yield Proposal("cpus", cpus, wanted, why, (before, gpus))
        else:
            workers = _workers(found, wait)
            yield workers or (
                f"{waits} while {percent(1 - busy / cpus)} of the CPUs are idle: "
                "more workers (num_workers), or faster storage, not more CPUs"
            )
        return
    wanted = _whole_shares(max(busy * CPU_HEAD_ROOM, 1, gpus), gpus)
    if wanted <= WORTH_IT * cpus:
        why = f"{amount(busy)} in use on average, and half as many on top for bursts"
        yield Proposal("cpus", cpus, wanted, why, (before, gpus))
    elif 0 < gpus < before:  # fewer GPUs would bring fewer CPUs
        why = f"{amount(busy)} in use on average: the GPUs that are left need the CPUs of all"
        yield Proposal("cpus", cpus, min(wanted, _whole_shares(cpus, gpus)), why, (before, gpus))


def _workers(found: Figures, wait: float) -> Proposal | None:
    """Return more loader workers, of a training that says how many it has; as many as it has CPUs at most."""
    training = found.training
    if training is None or training.workers is None or not training.world_size or not found.job.cpus:
        return None
    # Beside the step one of n workers must have loaded a batch: without any, a step loads, then computes.
    load = wait / (1 - min(wait, 0.95)) if training.workers == 0 else training.workers / (1 - min(wait, 0.75))
    wanted = min(math.ceil(load * HEAD_ROOM), max(1, found.job.cpus // training.world_size))
    if wanted <= training.workers:
        return None
    why = f"the loader waits {percent(wait)} of each step, and CPUs are idle"
    return Proposal("workers", training.workers, wanted, why)


def _whole_shares(cpus: float, gpus: int) -> int:
    """Return CPUs, as many for each GPU."""
    return math.ceil(cpus / gpus) * gpus if gpus else math.ceil(cpus)


def _time(found: Figures) -> Iterator[Proposal | str]:
    elapsed, limit = found.job.elapsed or 0, found.job.limit
    if limit is None or found.starts > found.tasks:
        return  # of a job in several starts no single one tells how long the whole takes
    wanted, room = _with_time_to_spare(elapsed)
    took = f"it took {duration(elapsed)}, {room}"
    if limit == "UNLIMITED":
        yield Proposal("time", None, wanted, f"{took}; a limit lets it start sooner")
    elif wanted <= WORTH_IT * limit:
        yield Proposal("time", limit, wanted, f"{took}; shorter jobs start sooner")
    elif elapsed > NEAR * limit and wanted > limit:
        yield Proposal("time", limit, wanted, f"the {duration(elapsed)} that it took came close to it")


def _with_time_to_spare(seconds: float) -> tuple[int, str]:
    """Return seconds to ask for, for so many that are needed, and what was added in words."""
    wanted = rounded_up(seconds * HEAD_ROOM, TIME_STEPS, 0.1)
    if wanted < LEAST_TIME:
        return LEAST_TIME, f"and {duration(LEAST_TIME)} is the least proposed"
    return wanted, "and 20 % on top"


def _time_of_all(found: Figures, part: Part, cluster: Cluster | None) -> Iterator[Proposal | str]:
    limit, seconds = found.job.limit, part.seconds
    if seconds is None:
        yield f"time: unknown: {part.how}"
        return
    wanted, room = _with_time_to_spare(seconds)
    why = f"{duration(seconds)} in all ({part.how}), {room}"
    most = _longest(found, cluster)
    if limit is None or limit == "UNLIMITED":
        wanted = wanted if most is None else min(wanted, most)
        yield Proposal("time", None, wanted, why, unsaid=limit is None)
    elif wanted <= WORTH_IT * limit:
        yield Proposal("time", limit, wanted, f"{why}; shorter jobs start sooner")
    elif seconds > NEAR * limit and part.starts_again:
        yield f"time: {why}: more than its limit of {duration(limit)}, after which it goes on in another start"
    elif seconds > NEAR * limit and most is not None and limit >= most:
        yield (
            f"time: {why}: more than the {duration(most)} that are the longest in {found.job.partition}: save checkpoints, and "
            "let it go on in another start (restart: {on: [timeout]})"
        )
    elif seconds > NEAR * limit:
        yield Proposal("time", limit, wanted if most is None else min(wanted, most), why)


def _after_out_of_memory(found: Figures, cluster: Cluster | None) -> Iterator[Proposal | str]:
    if found.memory is None:
        yield "it ran out of memory; how much it had is not known, so ask for more than you did"
        return
    wanted = rounded_up(found.memory * MORE, MEMORY_STEPS)
    if found.over_memory and found.peak is not None and found.peak.amount * HEAD_ROOM > wanted:
        yield from _memory_of_more(found, cluster)
        return
    most, had = _most_memory(found, cluster), memory_option(found.memory)
    if most is not None and found.memory >= most:
        yield (
            f"it ran out of memory with {had}, and no node of {found.job.partition} has more: "
            "use more nodes, fewer workers or a smaller batch"
        )
        return
    why = f"it was ended with {had} on a node; how much it needs is not known, so half as much again"
    yield Proposal("memory", found.memory, wanted if most is None else min(wanted, most), why)


def _most_memory(found: Figures, cluster: Cluster | None) -> int | None:
    """Return bytes of the largest node of the partition, where the profile says; 0 of one whose memory is not stated."""
    partition = cluster.partitions.get(found.job.partition or "") if cluster else None
    sizes = [kind.memory for kind in partition.kinds] if partition else []
    return max(size.mib for size in sizes if size) << 20 if sizes and all(sizes) else None


def _after_timeout(found: Figures, cluster: Cluster | None) -> Iterator[Proposal | str]:
    limit, training, elapsed = found.job.limit, found.training, found.job.elapsed
    if not isinstance(limit, int):
        yield "it ran into a time limit that is not known; ask for more than you did"
        return
    wanted = rounded_up(limit * MORE, TIME_STEPS, 0.1)
    why = "it was ended at its limit; how long it takes is not known, so half as long again"
    if training is not None:
        total, done, pace = training.total_steps, training.steps, training.steps_of_last_start
        if total and done is not None and done < total and pace and elapsed:
            seconds = elapsed / pace * total
            wanted = rounded_up(seconds * HEAD_ROOM, TIME_STEPS, 0.1)
            why = f"{total - done} of {total} steps were left; at its pace {duration(seconds)} in all, and 20 % on top"
        why += "; from checkpoints it goes on: slurmgpu resume"
    most = _longest(found, cluster)
    if most is not None and limit >= most:
        yield (
            f"it ran into its time limit of {duration(limit)}, the longest in {found.job.partition}: save checkpoints, and let "
            "it go on in another start (restart: {on: [timeout]})"
        )
        return
    wanted = wanted if most is None else min(wanted, most)
    if wanted > limit:
        yield Proposal("time", limit, wanted, why)


def _longest(found: Figures, cluster: Cluster | None) -> int | None:
    partition = cluster.partitions.get(found.job.partition or "") if cluster else None
    longest = partition.limits.max_time if partition else None
    return longest.seconds if longest else None
