"""When a checkpoint is due: a bound on the steps that a kill may cost, and a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

from ..watching.watch import NEVER

__all__ = ["Bound", "Budget"]


class Bound:
    """Never more than ``steps`` steps beyond the newest checkpoint; None: no such bound.

    Before they are exceeded the training waits for the save under way. So that it seldom has to, a save is begun a
    lead earlier: rank 0 measures it and tells it with the result of a save, which all ranks collect at the same
    step. Thus they begin the next one at the same step, and nobody asks. A save that failed is counted from as if it
    had not: trying again in every step would help nobody.

    Args:
        keep_every: Steps that it divides are saved too.
        first_step: The step of the checkpoint that was found; 0 at a fresh start.
    """

    def __init__(self, steps: Optional[int], keep_every: Optional[int], first_step: int) -> None:
        self.steps, self.keep_every, self._from = steps, keep_every, first_step
        self._begun: Optional[int] = None
        self._lead = 0 if steps is None else steps // 2  # until it is known how long a save takes

    def begun(self, step: int) -> None:
        """A save of this step is under way."""
        self._begun = step

    def ended(self, lead: Optional[int]) -> None:
        """The save under way has been collected, with the lead for the next (None: as before)."""
        assert self._begun is not None
        self._from, self._begun = self._begun, None
        if lead is not None:
            self._lead = lead

    def lead(self, seconds: float, step_seconds: float) -> int:
        """Steps by which a save of so many seconds begins early, with as many again in reserve; at most half the bound.

        0 if a save takes longer than the whole bound: saving at every half would only be waited for twice as often.
        """
        if self.steps is None:
            return 0
        if seconds >= self.steps * step_seconds > 0:
            return 0
        taken = seconds / step_seconds if step_seconds > 0 else self.steps
        return min(self.steps // 2, 1 + int(2 * taken))

    def must_wait(self, step: int) -> bool:
        """Return True if the save under way must be collected before another step."""
        return self._begun is not None and step >= self._end()

    def due(self, step: int) -> bool:
        """Return True if a save is to begin."""
        if self.steps is None:
            return False
        return self.is_for_good(step) or (self._begun is None and step >= self._end())

    def is_for_good(self, step: int) -> bool:
        """Return True if the checkpoint of a step stays for good."""
        return bool(self.keep_every and step and step % self.keep_every == 0)

    def next(self, step: int) -> int:
        """Return the next step at which one of the two may be so."""
        if self.steps is None:
            return NEVER
        kept = step - step % self.keep_every + self.keep_every if self.keep_every else NEVER
        return min(kept, self._end())

    def _end(self) -> int:
        if self.steps is None:
            return NEVER
        if self._begun is None:
            return self._from + self.steps - self._lead
        # Where a save came early, at the end of an epoch say, the next one still gets its lead.
        return min(self._from + self.steps, self._begun + self.steps - self._lead)


_FREE = 1.0  # seconds in all that are not worth a thought: short trainings are saved as often as asked


class Budget:
    """Seconds that a training stands still for its checkpoints, held against a share of all its time.

    Args:
        share: At most this share of the time; None: as much as it takes.
        clock: Gives seconds.
    """

    def __init__(self, share: Optional[float], clock: Callable[[], float] = time.monotonic) -> None:
        self.share, self._clock = share, clock
        self._began = clock()
        self._spent, self._saves = 0.0, 0
        self._expected = 0.0
        self._told = False

    def begin(self) -> None:
        """The steps begin now."""
        self._began = self._clock()

    def expect(self, seconds: float) -> None:
        """Set the seconds that a save is thought to cost as long as there was none."""
        self._expected = seconds

    def spend(self, seconds: float, saves: int = 0) -> None:
        """The training stood still for so long, and began so many saves."""
        self._spent += seconds
        self._saves += saves

    @property
    def cost(self) -> float:
        """Seconds that the training stands still for one save, on average."""
        return self._spent / self._saves if self._saves else self._expected

    @property
    def elapsed(self) -> float:
        """Seconds since the steps began."""
        return max(1e-9, self._clock() - self._began)

    def affords(self, writing: bool = False) -> bool:
        """Return True if one more save keeps to the share; not while it would wait for one that is still being written."""
        after = self._spent + self.cost
        if self.share is None or after <= _FREE:
            return True
        return not writing and after <= _FREE + self.share * self.elapsed

    def left_out(self, writing: bool) -> Optional[str]:
        """Return what to say where the checkpoint of an epoch is left out, the first time."""
        if self._told or self.share is None:
            return None
        self._told = True
        why = (
            "the one before is still being written"
            if writing
            else f"checkpoints have stopped the training for {self._spent:.1f} of {self.elapsed:.1f} s "
            f"({self.cost:.2g} s each)"
        )
        return (
            f"note: the checkpoint of this epoch is left out: {why}. Later ones are written as often as they take at "
            f"most {self.share:.2g} of the time (checkpoint_share), and the end always is; "
            "checkpoint_steps says how many steps a kill may cost"
        )

    def over(self, steps: Optional[int], setting: str = "checkpoint_steps") -> Optional[str]:
        """Return what to say where the bound that a setting asks for costs more than the share, the first time."""
        if steps is None or self._told or self.affords():
            return None
        self._told = True
        return (
            f"note: {setting} {steps} has stopped the training for {self._spent:.1f} of {self.elapsed:.1f} s "
            f"({self.cost:.2g} s for a checkpoint), more than the share of {self.share:.2g} (checkpoint_share); it is "
            f"kept to all the same, because you asked for it. A larger {setting} costs less"
        )
