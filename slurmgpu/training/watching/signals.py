"""Signals of a rank: TERM, USR1, USR2 and INT."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Optional

if TYPE_CHECKING:
    from .watch import Watch

__all__ = ["SIGNALS", "Signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Seconds within which a second INT is the same Ctrl-C: from the terminal, and from torchrun (of torch 2.1), which hands it on.
_AT_ONCE = 0.5


class Signals:
    """Handles them: ends the process at first, asks for an orderly stop once it trains.

    ``leave`` ends the process at once, with an exit code. No exception: raised in the middle of anything, it may
    be swallowed (a callback of the import system does), and the signal would be lost.
    """

    def __init__(self, leave: Callable[[int], NoReturn]) -> None:
        self._leave = leave
        self._watch: Optional[Watch] = None
        self._interrupted = -math.inf
        self._farewell: Callable[[str], None] = lambda _name: None
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def before_leaving(self, act: Callable[[str], None]) -> None:
        """From now on a signal that ends the process calls this first, with its name."""
        self._farewell = act

    def hand_back(self) -> None:
        """Signals do again what they did before."""
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def give_to(self, watch: Watch) -> None:
        """From now on signals are the watch's."""
        self._watch = watch

    def _handle(self, number: int, _frame: Optional[FrameType]) -> None:
        if self._watch is None:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_IGN)  # launchers repeat themselves: once is enough
            self._farewell(signal.Signals(number).name)
            self._leave(128 + number)
        if number == signal.SIGINT:
            before, self._interrupted = self._interrupted, time.monotonic()
            if self._watch.wanted and self._interrupted - before > _AT_ONCE:
                self._leave(128 + number)  # someone at a terminal who will not wait
        self._watch.want(signal.Signals(number).name)
