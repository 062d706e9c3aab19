"""When a checkpoint is begun and when it must count, so that a kill costs no more steps than were asked for."""

from __future__ import annotations

from typing import Optional

from ..watching.watch import NEVER

__all__ = ["Bound"]


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
