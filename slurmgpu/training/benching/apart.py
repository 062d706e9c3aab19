"""A training whose processes keep their gradients to themselves, ``python -m slurmgpu_training.benching.apart``.

What its steps take less than those of the same training is what the exchange of gradients costs: what of it is hidden behind the
backward pass costs nothing. Whoever measures this throws the training away.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .. import loop
from ..__main__ import main
from ..step import Step
from .trying import APART

_TOGETHER = 2
"""Steps that exchange: DDP sets up its buckets in the first ones, and with a static graph it must (pytorch's issue 143580)."""


class _Apart(Step):
    _taken = 0

    def take(self, size: int) -> None:
        if self._ddp is not None and self._taken == _TOGETHER:
            self._ddp.require_backward_grad_sync = False  # as in its no_sync(), and for good
            Path(os.environ["SLURMGPU_RUN_DIR"], APART).touch()
        self._taken += 1
        super().take(size)


if __name__ == "__main__":
    loop.Step = _Apart  # type: ignore[attr-defined]
    main(sys.argv[1:], os.environ)
