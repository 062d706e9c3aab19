"""What the tasks beside this call at the beginning of each training loss; a benchmark puts its own there."""

from __future__ import annotations

from collections.abc import Callable


class Enough(BaseException):
    """Ends a training that has shown what it was to show, without its last checkpoint."""


def nothing() -> None:
    """Stand in where nobody measures."""


at_loss: Callable[[], None] = nothing
