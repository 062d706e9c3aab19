"""How much of the time goes into checkpoints: one that no bound asks for waits until it is paid for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

__all__ = ["Budget"]

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
        """What a save is thought to cost as long as there was none."""
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
