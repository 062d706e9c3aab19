"""Logs of any size as the few lines that matter: the end of each, its beginning, and what lies around errors between them.

Lines may be of any length and any bytes; a carriage return ends one as a newline does, for progress bars are written so.
"""

from __future__ import annotations

import bisect
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

__all__ = ["Line", "Piece", "cleaned", "read"]

_TAIL = 4 << 20
_HEAD = 256 << 10
_TOTAL = 16 << 20  # of all files together, beside what is found between head and tail
_CHUNK = 1 << 20
_BEFORE, _BEHIND = 16 << 10, 64 << 10
_MOST_FOUND = 12
_MOST_FILES = 4096
_LONGEST = 2000  # characters of a line that are looked at
# Searched for between head and tail: few, and long, since each costs as much as all of a log.
_SIGNS = (
    b"Traceback (most recent call last)",
    b": Exited with exit code ",
    b"Watchdog caught collective operation timeout",
)
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PREFIXES = (
    re.compile(r"\[rank(?P<rank>\d+)\]:? ?"),  # torch, of an exception and of its log
    re.compile(r"\[rank (?P<rank>\d+) on (?P<host>[\w.-]+)\] ?"),  # slurmgpu.training
    re.compile(r"\[rank: (?P<rank>\d+)\] ?"),  # Lightning
    re.compile(r"\[\d+,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?"),  # mpirun --tag-output
    re.compile(
        r"\[[A-Za-z_]\w*?(?P<local>\d+)(?:\|(?P<rank>\d+))?\]: ?"
    ),  # torchrun --tee: role and local rank
)
_LABEL = re.compile(r" *(?P<rank>\d+): ?")  # srun --label
_IN_NAMES = (
    re.compile(r"^\d+_(?P<rank>\d+)_log\.(?:out|err)$"),  # submitit
    re.compile(r"(?:^|[._-])(?:rank|task|proc)[._-]?(?P<rank>\d+)(?:\D|$)"),
)


class Line(NamedTuple):
    """One line, without what was put before it."""

    text: str
    rank: Optional[int]
    """Whose it is, where the line or its file says so."""
    stream: str
    """What lines of one process have in common: the prefix."""
    host: str = ""


class Piece:
    """A part of a log; lines are decoded when they are asked for."""

    def __init__(self, path: str, data: bytes, *, rank: Optional[int] = None, ends: bool = True) -> None:
        self.path, self.rank, self.ends = path, rank, ends
        """``ends``: whether the log's end is this one's."""
        self.data = data.replace(b"\r", b"\n")
        self._raw = self.data.split(b"\n")
        self._begins: list[int] = []
        self._lines: dict[int, Line] = {}
        self._labelled: Optional[bool] = None

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, number: int) -> Line:
        if number not in self._lines:
            text = cleaned(self._raw[number])
            self._lines[number] = _split(text, self.rank, self._is_labelled())
        return self._lines[number]

    def where(self, sign: bytes, most: int = 400, end: Optional[int] = None) -> Iterator[int]:
        """The numbers of the lines with this in them, of very many the first and the last; in the last ``end`` bytes."""
        if not self._begins:
            at = 0
            for raw in self._raw:
                self._begins.append(at)
                at += len(raw) + 1
        first: list[int] = []
        at = self.data.find(sign, 0 if end is None else max(0, len(self.data) - end))
        while at >= 0 and len(first) < most:
            first.append(self._number(at))
            at = self.data.find(sign, self._begins[first[-1]] + len(self._raw[first[-1]]))
        last: list[int] = []
        if at >= 0:
            at = self.data.rfind(sign)
            while at >= 0 and len(last) < most and self._number(at) > first[-1]:
                last.append(self._number(at))
                at = self.data.rfind(sign, 0, self._begins[last[-1]])
        yield from first
        yield from reversed(last)

    def _number(self, offset: int) -> int:
        return bisect.bisect_right(self._begins, offset) - 1

    def _is_labelled(self) -> bool:
        """Whether srun put the task's number before each line: then it does so before nearly all."""
        if self._labelled is None:
            shown = [raw for raw in self._raw[-400:] if raw.strip()]
            count = sum(re.match(rb" *\d{1,6}: ", raw) is not None for raw in shown)
            self._labelled = len(shown) >= 4 and count >= 0.6 * len(shown)
        return self._labelled


def cleaned(raw: bytes) -> str:
    """Bytes as text that a terminal may show, without colours; of a very long line its two ends."""
    if len(raw) > 4 * _LONGEST:
        raw = raw[: 3 * _LONGEST] + b" ... " + raw[-_LONGEST:]
    text = raw.decode("utf-8", "replace")
    text = _CONTROL.sub("", _ANSI.sub("", text))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 505]} ... {text[-500:]}"


# Behind a progress bar, which ends without a newline; a worker's "Original Traceback" is a line of its own.
_BEHIND_OTHERS = re.compile(
    r"(?:\[(?:rank:? ?)?[\w|,]+(?: on [\w.-]+)?\](?:<std\w+>)?:? ?)*"
    r"(?<!Original )(?<!Group )Traceback \(most recent call last\):?\s*$"
)


# An exception group draws its traceback, and those in it, beside lines: "  | ValueError: one", "  + Exception Group Traceback".
_GROUP = re.compile(r" {2,}(?:\| |\+ (?=Exception Group Traceback))")


def _split(text: str, rank: Optional[int], labelled: bool) -> Line:
    at, host, found = 0, "", True
    behind = _BEHIND_OTHERS.search(text) if "Traceback (most recent" in text[1:] else None
    if behind and not labelled and text[: behind.start()].strip():
        text = text[behind.start() :]
    if labelled:
        label = _LABEL.match(text)
        if label:
            at, rank = label.end(), int(label["rank"])
    while found:
        found = False
        for pattern in _PREFIXES:
            match = pattern.match(text, at)
            if match:
                at, found, groups = match.end(), True, match.groupdict()
                rank = int(groups["rank"]) if groups.get("rank") else rank
                host = groups.get("host") or host
                break
    drawn = _GROUP.match(text, at) if text[at : at + 2] == "  " else None
    return Line(text[drawn.end() if drawn else at :], rank, text[:at], host)


class _Budget:
    """Time to search in: of the processor's, since a busy machine is no reason to find less; and at most five times that."""

    def __init__(self, seconds: float) -> None:
        self._work, self._until = time.process_time() + seconds, time.monotonic() + 5 * seconds

    @property
    def is_left(self) -> bool:
        return time.process_time() < self._work and time.monotonic() < self._until


def read(paths: Iterable[str], seconds: float = 0.7, begins: Optional[dict[str, int]] = None) -> list[Piece]:
    """The pieces of some logs that matter, in the order of the files; what cannot be read is left out.

    ``seconds`` of work bound the search between the beginning and the end of large logs, ``begins`` says from which byte on
    a log counts.
    """
    files = list(dict.fromkeys(paths))[:_MOST_FILES]
    share = max(64 << 10, _TOTAL // max(1, len(files)))
    budget = _Budget(seconds)
    found: list[Piece] = []
    for path in files:
        try:
            found += _pieces(path, min(_TAIL, share), budget, (begins or {}).get(path, 0))
        except OSError:
            continue
    return found


def _pieces(path: str, tail: int, budget: _Budget, begin: int) -> list[Piece]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not os.path.isfile(path) or status.st_size <= begin:  # noqa: PTH113
            return []
        size, rank = status.st_size, _rank_of(path)
        head = min(_HEAD, tail)
        if size - begin <= head + tail:
            return [Piece(path, _bytes(descriptor, begin, size), rank=rank)]
        middle = _found(descriptor, begin + head, size - tail, budget)
        spans = _joined([(begin, begin + head), *middle, (size - tail, size)])
        return [
            Piece(path, _bytes(descriptor, one, other), rank=rank, ends=other == size) for one, other in spans
        ]
    finally:
        os.close(descriptor)


def _rank_of(path: str) -> Optional[int]:
    name = Path(path).name
    match = next(filter(None, (pattern.search(name) for pattern in _IN_NAMES)), None)
    return int(match["rank"]) if match else None


def _bytes(descriptor: int, begin: int, end: int) -> bytes:
    parts, at = [], begin
    while at < end:
        part = os.pread(descriptor, min(end - at, 8 * _CHUNK), at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _found(descriptor: int, begin: int, end: int, budget: _Budget) -> list[tuple[int, int]]:
    """Where errors stand between head and tail, the last ones first: what came long before is seldom the end's cause."""
    spans: list[tuple[int, int]] = []
    at, chunk = end, bytearray(_CHUNK + 64)  # a sign may lie across two
    while at > begin and budget.is_left and len(spans) < _MOST_FOUND:
        start = max(begin, at - _CHUNK)
        size = os.preadv(descriptor, [chunk], start)
        for sign in _SIGNS:
            hit = chunk.rfind(sign, 0, min(size, at - start + 64))
            while hit >= 0 and len(spans) < _MOST_FOUND:
                spans.append((max(begin, start + hit - _BEFORE), min(end, start + hit + _BEHIND)))
                hit = chunk.rfind(sign, 0, max(0, hit - _BEHIND))
        at = start
    return spans


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
