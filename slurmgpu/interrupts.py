"""A lost connection (HUP), or a ``timeout`` (TERM), ends a submission, a wait or a look at Slurm as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["as_interrupts"]


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C by another signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def _raise(number: int, _: FrameType | None) -> None:
    for one in _SIGNALS:  # the second one finds its default: who sends it twice means it
        signal.signal(one, signal.SIG_DFL)
    raise _Interrupted(number)


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for TERM and HUP meanwhile; one that is ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():  # signals reach that one alone
        yield
        return
    before = {one: signal.getsignal(one) for one in _SIGNALS}
    mine = [one for one, handler in before.items() if handler == signal.SIG_DFL]
    for one in mine:
        signal.signal(one, _raise)
    try:
        yield
    finally:
        for one in mine:
            signal.signal(one, before[one] or signal.SIG_DFL)
