"""A profile of some steps: what ran when, which operators took the time, what took the memory.

A start goes through it once: ``profile_after`` steps pass, ``profile_steps`` are timed as they are, a few warm
the profiler up, ``profile_steps`` are recorded, and what they tell is said. Then the loop takes its steps directly
again, as it does from the first one when there is no profile.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile, schedule

from ..files import write_json
from ..verdict.judging import judge, summary
from ..verdict.measuring import Queue, Timed, measured_trace
from ..verdict.trace import Unreadable
from .gauges import peak_memory
from .phases import STEP, Lap, Phases

if TYPE_CHECKING:
    from ..session import Session
    from ..step import Step

__all__ = ["SCHEMA", "Profile", "begin"]

SCHEMA = "slurmgpu.profile/1"
_WARM_UP = 3  # steps in which the profiler runs already and nothing of it counts
_ROWS = 60  # of an operator table
_ALLOCATIONS = 200_000  # of a memory snapshot, the newest
_MOST_TEXT = 1 << 28  # characters of a trace that a training reads itself: some seconds


def begin(
    step: Step, take: Callable[[int], None], session: Session, last_step: int, phases: Phases
) -> Optional[Profile]:
    """A profile for the steps of this start; None when none is asked for, an earlier one is there, or steps are too few."""
    folder, settings = session.run_dir / "profile", step.settings
    if not settings.profile:
        return None
    # One answer for all: with another world size the ranks would not agree on whose files are there.
    if session.group.on_first(lambda: any(folder.glob("rank-*.steps.json"))):
        session.console.say("note: profile/ is there from an earlier start; remove it to have a new one")
        return None
    if settings.profile_snapshot and session.group.device.type != "cuda":
        session.console.say("note: profile_snapshot does nothing on CPUs")
    found, left = Profile(step, take, session, phases), last_step - session.watch.step
    if found.needs > left:
        session.console.say(
            f"note: no profile: it takes {found.needs} steps (profile_after {settings.profile_after} + 2 x "
            f"profile_steps {settings.profile_steps} + {_WARM_UP}), and this start has {left}"
        )
        return None
    return found


class Profile:
    """One rank's profile; its ``take`` stands in for the one that it is given until it is ``through``."""

    def __init__(self, step: Step, take: Callable[[int], None], session: Session, phases: Phases) -> None:
        self._step, self._take, self._session, self._folder = step, take, session, session.run_dir / "profile"
        self._phases = phases
        self._device, self._rank = session.group.device, session.group.ranks.rank
        self._on_gpu = self._device.type == "cuda"
        self._settings = step.settings
        self._after, self._steps = step.settings.profile_after, step.settings.profile_steps
        self._snapshot = step.settings.profile_snapshot and self._on_gpu
        self._taken = 0
        self._queued: list[Waited] = []  # before and after the timed steps, and the recorded ones
        self._first = session.watch.step + 1
        self._profiler: Optional[profile] = None

    @property
    def needs(self) -> int:
        """Steps from the first one of this start to the last one recorded."""
        return self._after + 2 * self._steps + _WARM_UP

    @property
    def through(self) -> bool:
        """True if all is recorded."""
        return self._taken >= self.needs

    def take(self, size: int) -> None:
        """One step, and what is due around it."""
        if self._after <= self._taken <= self._after + self._steps:
            self._phases.step()
            self._phases.timing = self._taken < self._after + self._steps
        if self._taken in (self._after, self._after + self._steps, self.needs - self._steps):
            self._queued.append(waited())
        if self._taken == self._after + self._steps:
            self._start()
        self._take(size)
        self._taken += 1
        if self._profiler is not None:
            _quietly(self._profiler.step)
        if self._taken == self.needs:
            self._finish()

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=_WARM_UP, active=self._steps, repeat=1),
            record_shapes=True,
            profile_memory=True,
            with_stack=self._settings.profile_stacks,
        )
        self._phases.marking = True
        if self._snapshot:
            torch.cuda.memory._record_memory_history(max_entries=_ALLOCATIONS)
        _quietly(self._profiler.start)

    def _finish(self) -> None:
        """Write everything down; a disk that is full costs the profile, not the training."""
        began = time.perf_counter()
        self._queued.append(waited())
        self._phases.marking = False
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        measured: Optional[dict[str, Any]] = None
        try:
            self._folder.mkdir(exist_ok=True)
            timed = Times.of(self._phases.times(), self._steps)
            measured = self._write(timed)
        except OSError as error:
            self._session.console.say(f"warning: the profile could not be written: {error.strerror}")
        else:
            last = self._first + self.needs - 1
            self._session.console.say(
                f"profile of steps {last - self._steps + 1} to {last} written to {self._folder.name}/"
            )
        self._profiler = None
        self._session.watch.beats += 1
        self._tell(self._session.group.gather(measured))  # all ranks are here, after the same step
        self._step.meter.pause(time.perf_counter() - began)

    def _tell(self, measured: Sequence[Optional[Mapping[str, Any]]]) -> None:
        """Say what takes the time, of the ranks that know."""
        known = {rank: each for rank, each in enumerate(measured) if each is not None}
        if known and self._session.group.ranks.first:
            for line in summary(judge(known, self._settings.as_dict())):
                self._session.console.say(line)

    def _write(self, timed: Times) -> Optional[dict[str, Any]]:
        assert self._profiler is not None
        _quietly(self._profiler.stop)
        name = f"rank-{self._rank}"
        trace = self._folder / f"{name}.trace.json.gz"
        _quietly(lambda: self._export(trace))
        if self._snapshot:
            file = str(self._folder / f"{name}.memory.pickle")
            torch.cuda.memory._dump_snapshot(file)  # type: ignore[no-untyped-call, unused-ignore]
            torch.cuda.memory._record_memory_history(enabled=None)
        averages = self._profiler.key_averages()
        (self._folder / f"{name}.operators.txt").write_text(self._operators(averages), encoding="utf-8")
        (self._folder / f"{name}.memory.txt").write_text(self._memory(averages), encoding="utf-8")
        measured = self._measure(trace, timed)
        if measured is not None:
            write_json(self._folder / f"{name}.parts.json", measured)
        write_json(self._folder / f"{name}.steps.json", self._times(timed))  # last: now the profile is whole
        return measured

    def _export(self, trace: Path) -> None:
        assert self._profiler is not None
        self._profiler.export_chrome_trace(str(trace))

    def _measure(self, trace: Path, timed: Times) -> Optional[dict[str, Any]]:
        try:
            queue = between(self._queued, self._steps)
            return measured_trace(trace, replace(timed.means(), queue=queue), _MOST_TEXT)
        except Unreadable as error:
            self._session.console.say(
                f"note: no verdict on the profile: {trace.name} is not read here: {error}; slurmgpu profile reads it"
            )
        return None

    def _operators(self, averages: EventList) -> str:
        keys = ["self_cpu_time_total"]
        if self._on_gpu:
            # torch 2.3 gave it another name.
            new = hasattr(averages[0], "self_device_time_total") if len(averages) else True
            keys.insert(0, "self_device_time_total" if new else "self_cuda_time_total")
        return "\n".join(_table(averages, key) for key in keys)

    def _memory(self, averages: EventList) -> str:
        if self._on_gpu:
            return torch.cuda.memory_summary(self._device)
        table = _table(averages, "self_cpu_memory_usage")
        return f"most memory that this process has had so far: {peak_memory(self._device)} bytes\n{table}"

    def _times(self, timed: Times) -> dict[str, object]:
        first = self._first + self._after
        recorded = first + self._steps + _WARM_UP
        return {
            "schema": SCHEMA,
            "rank": self._rank,
            "device": torch.cuda.get_device_name(self._device) if self._on_gpu else "CPU",
            "torch": torch.__version__,
            "clock": "CUDA events" if self._on_gpu else "wall clock",
            "timed_steps": [first, first + self._steps - 1],
            "step_seconds": timed.steps,
            "phase_seconds": timed.phases,
            "recorded_steps": [recorded, recorded + self._steps - 1],
        }

    def close(self) -> None:
        """The loop has ended: an unfinished profile is given up; the next start makes it."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            _quietly(profiler.stop)
            if self._snapshot:
                torch.cuda.memory._record_memory_history(enabled=None)
        if not self.through:
            self._session.console.say(
                "note: stopped before the profile was complete; the next start makes it"
            )


class Times(NamedTuple):
    """Seconds of each timed step, and of each phase in each of them; ``busy``: those on a CPU, of all steps together."""

    steps: list[float]
    phases: list[dict[str, float]]
    busy: dict[str, float]

    @classmethod
    def of(cls, found: Sequence[Lap], steps: int) -> Times:
        """Sort what was timed into its steps; a step begins with ``STEP``."""
        times = cls([], [], {})
        for name, seconds, busy in found:
            if name == STEP:
                times.steps.append(0.0)
                times.phases.append({})
            times.steps[-1] += seconds
            if name and name != STEP:
                times.phases[-1][name] = times.phases[-1].get(name, 0.0) + seconds
            times.busy[name] = times.busy.get(name, 0.0) + busy
        return cls(times.steps[:steps], times.phases[:steps], times.busy)

    def means(self) -> Timed:
        """Return a mean step."""
        count = len(self.steps)
        names = {name for each in self.phases for name in each}
        phases = {name: sum(each.get(name, 0.0) for each in self.phases) / count for name in names}
        often = {name: sum(1 for each in self.phases if name in each) for name in names}
        busy = {name: each / count for name, each in self.busy.items()}
        return Timed(count, sum(self.steps) / count, phases, often, busy)


class Waited(NamedTuple):
    """Seconds that this thread and each worker of the loader, by its process, have waited for a CPU so far."""

    own: float
    workers: dict[int, float]


def waited() -> Waited:
    """Return how long they have waited, ready to run; 0 where the system does not tell."""
    children = [each.pid for each in multiprocessing.active_children() if each.pid is not None]
    return Waited(_in_queue("thread-self"), {pid: _in_queue(str(pid)) for pid in children})


def _in_queue(task: str) -> float:
    try:
        # Nanoseconds on a CPU, and in its queue; see sched-stats in the kernel's documentation.
        return int(Path("/proc", task, "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def between(points: Sequence[Waited], steps: int) -> Queue:
    """Return those of a mean step, from what was known before and after the timed steps and the recorded ones."""
    before, after, recorded, end = points
    later = [max(0.0, each - before.workers.get(pid, 0.0)) for pid, each in after.workers.items()]
    workers = sum(later) / max(1, len(later))
    return Queue((after.own - before.own) / steps, (end.own - recorded.own) / steps, workers / steps)


def _table(averages: EventList, key: str) -> str:
    table = averages.table(sort_by=key, row_limit=_ROWS, max_name_column_width=80)  # type: ignore[no-untyped-call, unused-ignore]
    return f"by {key}\n{table}"


def _quietly(act: Callable[[], object]) -> None:
    """torch's profiler warns of its own doings, such as events that it drops between cycles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        act()
