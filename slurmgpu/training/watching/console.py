"""The words of a training on the console: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

__all__ = ["Bar", "Console", "clock", "describe", "describe_bytes", "duration"]


_LEAST, _MOST = 5, 40  # columns of the bar itself
_BLOCKS, _ASCII = " ▏▎▍▌▋▊▉█", " #"


@dataclass(frozen=True)
class Bar:
    """Progress of a training: ``head`` goes before the bar, ``facts`` behind it, the most important one first."""

    step: int
    steps: int
    elapsed: float
    """Seconds since this start has begun to train."""
    left: Optional[float] = None
    """Seconds to the end; None: not known yet."""
    head: str = ""
    facts: Sequence[str] = ()

    def line(self, width: int, unicode: bool = True) -> str:
        """Return the line in at most so many columns: where they are few, first facts go, from the last one, then the bar."""
        share = self.step / self.steps if self.steps else 1.0
        before, count = f"{self.head}{int(100 * share):3d}%", f"{self.step}/{self.steps}"
        left = "?" if self.left is None else clock(self.left)
        for known in range(len(self.facts), -1, -1):
            behind = f"{count} [{', '.join([f'{clock(self.elapsed)}<{left}', *self.facts[:known]])}]"
            room = min(_MOST, width - len(f"{before}|| {behind}"))
            if room >= _LEAST:
                return f"{before}|{_blocks(share, room, unicode)}| {behind}"
        for text in (f"{before} {behind}", f"{before} {count}"):
            if len(text) <= width:
                return text
        return count[:width]


def _blocks(share: float, room: int, unicode: bool) -> str:
    signs = _BLOCKS if unicode else _ASCII
    whole, part = divmod(int(share * room * (len(signs) - 1)), len(signs) - 1)
    return (signs[-1] * whole + (signs[part] if part else "")).ljust(room)


def clock(seconds: float) -> str:
    """Return a time as a clock shows it: ``0:07``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_LOG_INTERVAL = 60.0  # seconds between two lines of progress in a log at least
_PATIENCE = 0.1  # seconds
_ERASE = "\r\x1b[K"  # what stands in a line, of which only another process knows


class Console:
    """Prints on rank 0 and is silent on the others.

    The bar is on stderr, so that it is seen where stdout goes to a file; on stdout if that alone is a terminal.
    """

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        terminal = _terminal()
        self._screen: Any = terminal if speaks else None
        self._neighbours = not speaks and terminal is not None  # the terminal may have the bar of rank 0
        self._logs = speaks and (self._screen is None or not sys.stdout.isatty())
        self._unicode = "utf" in (getattr(self._screen, "encoding", None) or "").lower()
        self._shown = 0
        self._drawn: Optional[int] = None
        self._open = False  # somebody has begun a line, and not ended it
        self._lock = threading.Lock()
        self._taken: dict[str, Any] = {}
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._speaks:
            self.print(self._taken.get("stdout", sys.stdout), text + "\n")
            self._drawn = None

    def due(self) -> bool:
        """Return True if a line of progress would go into the log now."""
        return self._logs and time.monotonic() - self._last >= _LOG_INTERVAL

    def progress(self, text: str) -> None:
        """Say in a log how far it is, now and then."""
        if self.due():
            self._last = time.monotonic()
            _write(sys.stdout, text + "\n")

    def draws(self, step: int) -> bool:
        """Return True if the bar of a step would be drawn: it is a new one, and no line is unfinished, as a debugger's."""
        return self._screen is not None and step != self._drawn and not self._open

    def draw(self, bar: Bar) -> None:
        """Draw the bar in place of the one before."""
        line = bar.line(self._columns() - 1, self._unicode)  # one that wraps cannot be taken back
        with self._alone():
            if not self._open:
                _write(self._screen, "\r" + line.ljust(self._shown))
                self._shown, self._drawn = len(line), bar.step

    def print(self, stream: Any, text: str) -> None:
        """Write to a stream, which may be the terminal's: the bar is taken away first."""
        with self._alone():
            if self._shown:
                _write(self._screen, "\r" + " " * self._shown + "\r")
                self._shown = 0
            elif self._neighbours and text and not self._open:
                text = _ERASE + text
            if text:
                self._open = not text.endswith(("\n", "\r"))
            _write(stream, text)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time; for long enough to write, because a worker forked at such a moment would wait for ever."""
        mine = self._lock.acquire(timeout=_PATIENCE)
        try:
            yield
        finally:
            if mine:
                self._lock.release()

    def open(self) -> None:
        """From now on also what others print on the terminal, such as the task, takes the bar away first."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if (self._screen is not None or self._neighbours) and stream.isatty():
                self._taken[name] = stream
                setattr(sys, name, _Beside(stream, self))

    def close(self) -> None:
        """Leave the bar where it is, with what is written next below it."""
        if self._shown:
            _write(self._screen, "\n")
            self._shown = 0
        while self._taken:
            name, stream = self._taken.popitem()
            if isinstance(getattr(sys, name), _Beside):
                setattr(sys, name, stream)

    def _columns(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._screen.fileno()).columns
            if columns:
                return columns
        return shutil.get_terminal_size().columns


class _Beside:
    """A stream to the terminal that has the bar."""

    def __init__(self, stream: Any, console: Console) -> None:
        self._stream, self._console = stream, console

    def write(self, text: str) -> int:
        self._console.print(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _terminal() -> Any:
    """Return the stream to a terminal on which a line can renew itself, if there is one."""
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return None
    return next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)


def _write(stream: Any, text: str) -> None:
    with contextlib.suppress(OSError):  # a log that cannot grow (a full disk) does not end a training
        stream.write(text)
        stream.flush()


def describe(results: Mapping[str, float]) -> str:
    """Return the test results as people read them: ``test accuracy 97.2 %, loss 0.0912``."""
    shares = {name for name in results if name.rpartition("/")[2] in ("accuracy", "accuracy_top5")}
    shown = [
        f"{name} {100 * value:.1f} %" if name in shares else f"{name} {value:.4g}"
        for name, value in results.items()
    ]
    return "test " + ", ".join(shown) if shown else "no test results"


def describe_bytes(size: int) -> str:
    """Return a size as people read it: ``12 kB``, ``1.5 GB``."""
    value, units = float(size), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def duration(seconds: float) -> str:
    """Return a duration as people read it: ``12.3 s``, ``4:05 min``, ``2:03:10 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"
