"""When to stop: signals, the clock, a rank that hangs; and how all ranks agree on the step.

A signal handler sets a flag and returns. A thread on each rank looks at the flag and at the clock a few times a
second, and tells the others' threads through the store. Then each thread draws a line that its own rank will not
cross, a step ahead, and rank 0 publishes the furthest of these lines: there all of them stop.
All that a step pays is one comparison: no collective, no GPU.
"""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, Optional

from ..errors import TrainingError
from ..processes.group import Channel
from ..processes.ranks import Ranks
from ..processes.recorder import write_collectives

__all__ = ["NEVER", "Duties", "Watch", "dump_stacks"]

_PERIOD = 0.2  # seconds between two looks
_LOOK = 0.02  # seconds between two looks while all agree on a stop
_REQUEST = 1e-4  # seconds that rank 0's store may spend on one rank's look, and more than it takes
_STOPPED = 30.0  # seconds without a look: the process itself was stopped, as in a job that Slurm suspends
_GRACE = 5.0  # seconds for the other ranks to write down their stacks too
NEVER = sys.maxsize


class Duties(NamedTuple):
    """The duties of a watch, once everything is built."""

    deadline: Callable[[], float]
    """When the time is up, in seconds since 1970."""
    on_hang: Callable[[float], NoReturn]
    """Ends this rank, which has given no sign of life for so many seconds."""
    at_each_look: Callable[[], None] = lambda: None
    """Called a few times a second."""


class Watch:
    """Watches over one rank. The loop counts its steps in ``step``, and asks ``stop`` where ``step >= line``."""

    def __init__(self, ranks: Ranks, timeout: float, hang_timeout: Optional[float] = None) -> None:
        self._ranks, self._timeout, self.hang_timeout = ranks, timeout, hang_timeout
        self.channel = Channel(ranks, timeout)
        self.step = 0
        self.beats = 0  # counts whatever is not a step and shows life
        self.paused = 0.0  # seconds that went into something other than steps
        self.line = NEVER
        self.reason = ""
        self.finished = False
        self._wanted = ""
        self._drawn = False
        self._stop_at: Optional[int] = None
        self._failure: Optional[Exception] = None
        self._closed = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._complained = False
        self._alive = (-1, -1)
        self._alive_since = self._began = self._looked = 0.0
        self._first_step = 0

    def start(self, duties: Duties) -> None:
        """Begin to watch; signals that came before ended the process, from now on they stop it in order."""
        self._alive_since = self._began = self._looked = time.monotonic()
        self._first_step = self.step
        self._thread = threading.Thread(target=self._run, args=(duties,), name="watch", daemon=True)
        self._thread.start()

    def pace(self) -> float:
        """Seconds that a step has taken so far, on average and with all that lies between steps."""
        steps = self.step - self._first_step
        return (time.monotonic() - self._began) / steps if steps > 0 else 0.0

    def step_seconds(self) -> float:
        """Seconds that a step has taken so far, on average and without what lies between steps."""
        steps = self.step - self._first_step
        return max(0.0, time.monotonic() - self._began - self.paused) / steps if steps > 0 else 0.0

    def close(self) -> None:
        """Watch no longer: this rank takes no more steps."""
        self.finished = True
        self._closed.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=10)

    def want(self, reason: str) -> None:
        """Ask for a stop at the next step that all ranks can agree on; safe in a signal handler."""
        if not self._wanted:
            self._wanted = reason
        if self._ranks.world_size == 1:
            self.reason, self._stop_at, self.line = self._wanted, 0, -1

    @property
    def wanted(self) -> bool:
        """True if this rank knows of a stop to come: a long evaluation is not worth beginning."""
        return bool(self._wanted) or self.line != NEVER

    def stop(self) -> bool:
        """At the end of a step on or beyond the line: whether all ranks stop here."""
        until = time.monotonic() + self._timeout
        while self._stop_at is None:
            if self._failure is not None or time.monotonic() > until:
                raise TrainingError(f"lost the other ranks while they agreed on a stop ({self._failure})")
            time.sleep(0.002)
        return self.step >= self._stop_at

    def _run(self, duties: Duties) -> None:
        while not self._closed.wait(_PERIOD):
            self._look_for_hang(duties.on_hang)
            self._in_passing(duties.at_each_look)
            if not self._wanted and time.time() >= duties.deadline():
                self.want("time")
            if self._ranks.world_size == 1 or self._failure is not None:
                continue
            try:
                self._agree()
            except Exception as error:  # the store is gone: so is rank 0, and the loop will find out
                self._failure = error

    def _in_passing(self, act: Callable[[], None]) -> None:
        """Do what else is due at each look; a failure must not end the watch."""
        try:
            act()
        except Exception as error:
            if not self._complained:
                self._complained = True
                prefix = f"[{self._ranks}] " if self._ranks.world_size > 1 else ""
                text = f"warning: what is done beside the training fails: {type(error).__name__}: {error}"
                with contextlib.suppress(OSError):
                    print(prefix + text, file=sys.stderr, flush=True)

    def _agree(self) -> None:
        if self._stop_at is not None:
            return
        if self._wanted and not self._drawn:
            self.channel.put_first("stop", self._wanted)
        if not self._drawn:
            if not self.channel.has("stop"):
                return
            self._drawn = True
            line = self._draw()
            if self._ranks.first:
                others = [self._hear(rank) for rank in range(1, self._ranks.world_size)]
                self.channel.put("stop-at", max([line, *others]))
            else:
                self.channel.put(f"line/{self._ranks.rank}", line)
        if not self._comes("stop-at", max(_LOOK, self._ranks.world_size * _REQUEST)):
            return
        self.reason = str(self.channel.get("stop"))
        self._stop_at = int(self.channel.get("stop-at"))
        self.line = self._stop_at

    def _hear(self, rank: int) -> int:
        """Return the line of a rank."""
        if not self._comes(f"line/{rank}", _LOOK):
            raise TrainingError("the watch is over")
        return int(self.channel.get(f"line/{rank}"))

    def _comes(self, name: str, period: float) -> bool:
        """Wait for a value, a look every so many seconds; False: the watch is over."""
        while not self.channel.has(name):
            if self._closed.wait(period):
                return False
        return True

    def _draw(self) -> int:
        """Return a step ahead that this rank will not cross: the loop counts a step before it looks at the line."""
        while True:
            ahead = self.step + 1
            self.line = ahead
            if self.step < ahead:
                return self.step if self.finished else ahead

    def _look_for_hang(self, on_hang: Callable[[float], NoReturn]) -> None:
        alive, now = (self.step, self.beats), time.monotonic()
        if now - self._looked > _STOPPED:
            self._alive_since += now - self._looked
        self._looked = now
        if alive != self._alive:
            self._alive, self._alive_since = alive, now
        elif self.hang_timeout is not None and now - self._alive_since > self.hang_timeout:
            on_hang(now - self._alive_since)


def dump_stacks(folder: Path, ranks: Ranks) -> str:
    """Write where every thread of this process is to stderr and to a file in the folder, whose name is returned."""
    faulthandler.dump_traceback(all_threads=True)
    name = f"stacks-rank-{ranks.rank}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("w") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            write_collectives(folder.parent, ranks)
    except OSError:
        name = "stderr"
    time.sleep(_GRACE)
    return name
