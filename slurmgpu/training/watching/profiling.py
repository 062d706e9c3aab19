"""A profile of some steps: what ran when, which operators took the time, what took the memory.

A start goes through it once: ``profile_after`` steps pass, ``profile_steps`` are timed as they are, a few warm
the profiler up, ``profile_steps`` are recorded. Then the loop takes its steps directly again, as it does from
the first one when there is no profile.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile, schedule

from ..files import write_json
from .gauges import peak_memory

if TYPE_CHECKING:
    from ..session import Session
    from ..step import Step

__all__ = ["SCHEMA", "Profile", "begin"]

SCHEMA = "slurmgpu.profile/1"
_WARM_UP = 3  # steps in which the profiler runs already and nothing of it counts
_ROWS = 60  # of an operator table


def begin(step: Step, session: Session, last_step: int) -> Optional[Profile]:
    """A profile for the steps of this start; None when an earlier one has finished it, or there are too few."""
    folder, settings = session.run_dir / "profile", step.settings
    # One answer for all: with another world size the ranks would not agree on whose files are there.
    if session.group.on_first(lambda: any(folder.glob("rank-*.steps.json"))):
        session.console.say("note: profile/ is there from an earlier start; remove it to have a new one")
        return None
    found, left = Profile(step, session), last_step - session.watch.step
    if found.needs > left:
        session.console.say(
            f"note: no profile: it takes {found.needs} steps (profile_after {settings.profile_after} + 2 x "
            f"profile_steps {settings.profile_steps} + {_WARM_UP}), and this start has {left}"
        )
        return None
    return found


class Profile:
    """One rank's profile; ``take`` stands in for the step's until it is ``through``."""

    def __init__(self, step: Step, session: Session) -> None:
        self._step, self._session, self._folder = step, session, session.run_dir / "profile"
        self._device, self._rank = session.group.device, session.group.ranks.rank
        self._on_gpu = self._device.type == "cuda"
        self._after, self._steps = step.settings.profile_after, step.settings.profile_steps
        self._taken = 0
        self._first = session.watch.step + 1
        self._marks: list[Any] = []
        self._profiler: Optional[profile] = None

    @property
    def needs(self) -> int:
        """Steps from the first one of this start to the last one recorded."""
        return self._after + 2 * self._steps + _WARM_UP

    @property
    def through(self) -> bool:
        """Whether all is recorded."""
        return self._taken >= self.needs

    def take(self, size: int) -> None:
        """One step, and what is due around it."""
        if self._after <= self._taken <= self._after + self._steps:
            self._mark()
        if self._taken == self._after + self._steps:
            self._start()
        self._step.take(size)
        self._taken += 1
        if self._profiler is not None:
            _quietly(self._profiler.step)
        if self._taken == self.needs:
            self._finish()

    def _mark(self) -> None:
        """The border between two timed steps: on a GPU an event in its stream, which nobody waits for."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=_WARM_UP, active=self._steps, repeat=1),
            record_shapes=True,
            profile_memory=True,
        )
        _quietly(self._profiler.start)

    def _finish(self) -> None:
        """Write everything down; a disk that is full costs the profile, not the training."""
        began = time.perf_counter()
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        try:
            self._folder.mkdir(exist_ok=True)
            _quietly(self._write)
        except OSError as error:
            self._session.console.say(f"warning: the profile could not be written: {error.strerror}")
        else:
            last = self._first + self.needs - 1
            self._session.console.say(
                f"profile of steps {last - self._steps + 1} to {last} written to {self._folder.name}/"
            )
        self._profiler = None
        self._session.watch.beats += 1
        self._step.meter.pause(time.perf_counter() - began)

    def _write(self) -> None:
        assert self._profiler is not None
        self._profiler.stop()
        name = f"rank-{self._rank}"
        self._profiler.export_chrome_trace(str(self._folder / f"{name}.trace.json.gz"))
        averages = self._profiler.key_averages()
        (self._folder / f"{name}.operators.txt").write_text(self._operators(averages), encoding="utf-8")
        (self._folder / f"{name}.memory.txt").write_text(self._memory(averages), encoding="utf-8")
        write_json(self._folder / f"{name}.steps.json", self._times())  # last: now the profile is whole

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

    def _times(self) -> dict[str, object]:
        pairs = zip(self._marks, self._marks[1:])
        seconds = [one.elapsed_time(two) / 1000 if self._on_gpu else two - one for one, two in pairs]
        timed = self._first + self._after
        recorded = timed + self._steps + _WARM_UP
        return {
            "schema": SCHEMA,
            "rank": self._rank,
            "device": torch.cuda.get_device_name(self._device) if self._on_gpu else "CPU",
            "torch": torch.__version__,
            "clock": "CUDA events" if self._on_gpu else "wall clock",
            "timed_steps": [timed, timed + self._steps - 1],
            "step_seconds": seconds,
            "recorded_steps": [recorded, recorded + self._steps - 1],
        }

    def close(self) -> None:
        """The loop has ended: an unfinished profile is given up; the next start makes it."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            _quietly(profiler.stop)
        if not self.through:
            self._session.console.say(
                "note: stopped before the profile was complete; the next start makes it"
            )


def _table(averages: EventList, key: str) -> str:
    table = averages.table(sort_by=key, row_limit=_ROWS, max_name_column_width=80)  # type: ignore[no-untyped-call, unused-ignore]
    return f"by {key}\n{table}"


def _quietly(act: Callable[[], object]) -> None:
    """torch's profiler warns of its own doings, such as events that it drops between cycles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        act()
