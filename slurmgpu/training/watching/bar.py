"""The line by which a terminal shows how far a training is, as users of tqdm know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

__all__ = ["Bar", "clock"]

_LEAST, _MOST = 5, 40  # columns of the bar itself
_BLOCKS, _ASCII = " ▏▎▍▌▋▊▉█", " #"


@dataclass(frozen=True)
class Bar:
    """How far a training is: ``head`` goes before the bar, ``facts`` behind it, the most important one first."""

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
