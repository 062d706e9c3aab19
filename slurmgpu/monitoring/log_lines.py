"""Which lines of a log are wanted: those of a rank, those since a moment, those that a pattern finds."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

__all__ = ["LineFilter", "Wanted", "rank_of", "time_of"]

# Colours before a prefix are no part of it.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# torch's own `[rank3]:`, what torchrun --tee writes (`[default3]:`, or its --role), what srun --label writes (` 3: `).
_RANK = re.compile(r"\[(?:rank ?|default|trainer|worker)(\d{1,6})\]:|\s*(\d{1,6}): ", re.IGNORECASE)
_ISO = re.compile(
    r"[\[(]?(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?\s?(Z|[+-]\d\d:?\d\d)?"
)
_US = re.compile(r"[\[(]?(\d\d)/(\d\d)/(\d{4}),? (\d\d):(\d\d):(\d\d)")  # Hugging Face's examples
_GLOG = re.compile(r"\[?[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)")  # torch's and NCCL's watchdog
_SYSLOG = re.compile(r"\[?([A-Z][a-z]{2})\s+(\d\d?) (\d\d):(\d\d):(\d\d)")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_BETWEEN = "--\n"


class Wanted(NamedTuple):
    """What of a log is to be shown; nothing set: all of it."""

    rank: int | None = None
    since: datetime | None = None
    pattern: re.Pattern[str] | None = None
    context: int = 0
    """Lines before and after each that the pattern finds."""

    @property
    def all(self) -> bool:
        """Whether every line is wanted."""
        return self.rank is None and self.since is None and self.pattern is None


def rank_of(line: str) -> int | None:
    """The rank that a line's prefix names; of torchrun's `[default3]:`, the one on its node."""
    match = _RANK.match(_COLOUR.sub("", line[:200]))
    return int(match[1] or match[2]) if match else None


def time_of(line: str, now: datetime) -> datetime | None:
    """The moment at the beginning of a line, behind its rank; one without a zone is in this machine's.

    Where the year is missing, it is the one that does not lie after `now`.
    """
    text = _COLOUR.sub("", line[:240])
    prefix = _RANK.match(text)
    text = text[prefix.end() :].lstrip() if prefix else text
    try:
        if match := _ISO.match(text):
            zone = (match[7] or "").replace("Z", "+00:00")
            year, month, day, hour, minute, second = map(int, match.groups()[:6])
            moment = datetime(year, month, day, hour, minute, second)
            if zone:
                zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
                return datetime.fromisoformat(moment.isoformat() + zone)
            return moment.astimezone()
        if match := _US.match(text):
            month, day, year, hour, minute, second = map(int, match.groups())
            return datetime(year, month, day, hour, minute, second).astimezone()
        if match := _GLOG.match(text):
            month, day, *clock = map(int, match.groups())
            return _in_its_year(month, day, clock, now)
        match = _SYSLOG.match(text)
        if match and match[1] in _MONTHS:
            day, *clock = map(int, match.groups()[1:])
            return _in_its_year(_MONTHS.index(match[1]) + 1, day, clock, now)
    except (
        ValueError,
        OverflowError,
    ):  # the 31st of February; the last day of the year 9999, west of Greenwich
        return None
    return None


def _in_its_year(month: int, day: int, clock: list[int], now: datetime) -> datetime:
    hour, minute, second = clock
    moment = datetime(now.astimezone().year, month, day, hour, minute, second).astimezone()
    late = (moment - now).total_seconds() > 86400
    return moment.replace(year=moment.year - 1) if late else moment


class LineFilter:
    """One log's lines, as they come, without those that are not wanted."""

    def __init__(self, wanted: Wanted, *, rank: int | None = None, at_first: datetime | None = None) -> None:
        """``rank`` wrote all of the log; ``at_first`` is when its first lines were written, as far as it is known."""
        self._wanted = wanted
        self._log_rank = rank
        self._time = at_first
        self._before: deque[str] = deque(maxlen=wanted.context)
        self._after = 0
        self._number = self._shown = 0
        self.ranked = rank is not None
        """Whether any line said which rank it is of."""

    def go_on(self) -> None:
        """What comes from here on is new, whatever time its lines have: it is since any moment."""
        self._wanted = self._wanted._replace(since=None)

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Those of the next lines that are wanted; between two groups with context `--`, as grep has it."""
        for line in lines:
            if not self._counts(line):
                continue
            self._number += 1
            if self._wanted.pattern is None:
                yield line
            elif self._wanted.pattern.search(_COLOUR.sub("", line)):
                yield from self._group(line)
            elif self._after:
                self._after -= 1
                self._shown = self._number
                yield line
            else:
                self._before.append(line)

    def _group(self, line: str) -> Iterator[str]:
        first = self._number - len(self._before)
        if self._wanted.context and self._shown and first > self._shown + 1:
            yield _BETWEEN
        yield from self._before
        yield line
        self._before.clear()
        self._after, self._shown = self._wanted.context, self._number

    def _counts(self, line: str) -> bool:
        wanted = self._wanted
        if wanted.rank is not None:
            rank = self._log_rank if self._log_rank is not None else rank_of(line)
            self.ranked = self.ranked or rank is not None
            if rank != wanted.rank:
                return False
        if wanted.since is None:
            return True
        self._time = time_of(line, datetime.now(timezone.utc)) or self._time
        return self._time is None or self._time >= wanted.since
