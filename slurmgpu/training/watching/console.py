"""What rank 0 says: plain lines in a log file, one line that renews itself on a terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Mapping

__all__ = ["Console", "describe", "describe_bytes", "duration"]

# Seconds between two lines of progress at least: in a log file, and on a terminal, where it is one line.
_LOG_INTERVAL, _TERMINAL_INTERVAL = 60.0, 0.1


class Console:
    """Prints on rank 0 and is silent on the others."""

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._terminal = speaks and sys.stdout.isatty()
        self._shown = 0
        self._interval = _TERMINAL_INTERVAL if self._terminal else _LOG_INTERVAL
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._speaks:
            self._print(self._over(text) + "\n")
            self._shown = 0

    def due(self) -> bool:
        """Whether a line of progress would be shown now."""
        return self._speaks and time.monotonic() - self._last >= self._interval

    def progress(self, text: str) -> None:
        """Show how far it is: renews the last line on a terminal, a line now and then in a log file."""
        if not self.due():
            return
        self._last = time.monotonic()
        if self._terminal:
            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be taken back
            self._print(self._over(text))
            self._shown = len(text)
        else:
            self._print(text + "\n")

    def _over(self, text: str) -> str:
        return "\r" + text.ljust(self._shown) if self._terminal else text

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot grow (a full disk) does not end a training
            sys.stdout.write(text)
            sys.stdout.flush()


def describe(results: Mapping[str, float]) -> str:
    """The test results as people read them: ``test accuracy 97.2 %, loss 0.0912``."""
    shown = [
        f"{name} {100 * value:.1f} %" if name.rpartition("/")[2] == "accuracy" else f"{name} {value:.4g}"
        for name, value in results.items()
    ]
    return "test " + ", ".join(shown) if shown else "no test results"


def describe_bytes(size: int) -> str:
    """A size as people read it: ``12 kB``, ``1.5 GB``."""
    value, units = float(size), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def duration(seconds: float) -> str:
    """A duration as people read it: ``12.3 s``, ``4:05 min``, ``2:03:10 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"
