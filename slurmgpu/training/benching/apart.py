"""Steps whose processes keep their gradients to themselves, taken where SLURMGPU_APART is set.

What they take less than those of the same training is what the exchange of gradients costs: what of it is hidden behind the
backward pass costs nothing. Whoever measures this throws the training away.
"""

from __future__ import annotations

from ..step import Step
from .trying import APART

__all__ = ["ApartStep"]

_TOGETHER = 2
"""Steps that exchange: DDP sets up its buckets in the first ones, and with a static graph it must (pytorch's issue 143580)."""


class ApartStep(Step):
    """A step as it would be if the exchange of gradients took no time."""

    _taken = 0

    def take(self, size: int) -> None:
        """One step, over this process's own share of ``size`` samples from the third on."""
        if self._ddp is not None and self._taken == _TOGETHER:
            self._ddp.require_backward_grad_sync = False  # as in its no_sync(), and for good
            (self.session.run_dir / APART).touch()
        self._taken += 1
        super().take(size)
