"""Logs of any size as the few lines that matter: the end of each, its beginning, and what lies around errors between them.

Lines may be of any length and any bytes; a carriage return ends one as a newline does, for progress bars are written so.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from .table import lines
from .table.translations import IN_ENGLISH

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
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


_HEADLINE = b"Traceback (most recent call last)"


class Line(NamedTuple):
    """One line, without what was put before it."""

    text: str
    rank: Optional[int]
    """Its owner (host, rank), where the line or its file says so."""
    stream: str
    """Prefix that the lines of one process share."""
    host: str = ""


class Piece:
    """A part of a log; lines are decoded when they are asked for."""

    def __init__(self, path: str, data: bytes, *, rank: Optional[int] = None, ends: bool = True) -> None:
        self.path, self.rank, self.ends = path, rank, ends
        """``ends``: whether the log's end is this one's."""
        self.data = data.replace(b"\r", b"\n")
        for foreign, english in IN_ENGLISH:
            if foreign in self.data:
                self.data = self.data.replace(foreign, english + b" (" + foreign + b")")
        if b"Traceback (most recent call last):\\n" in self.data:
            self.data = b"\n".join(_without_json(raw) for raw in self.data.split(b"\n"))
        self._raw = self.data.split(b"\n")
        self._begins: list[int] = []
        self._lines: dict[int, Line] = {}
        self._labels: Optional[re.Pattern[str]] = None
        self._looked_for_labels = False
        self._unheard_of = self._learn_prefix()

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, number: int) -> Line:
        if number not in self._lines:
            text, before = cleaned(self._raw[number]), ""
            unheard_of = self._unheard_of.match(text) if self._unheard_of is not None else None
            if unheard_of:
                before, text = unheard_of[0], text[unheard_of.end() :]
            line = _split(text, self.rank, self._labelled_by())
            self._lines[number] = (
                line._replace(stream=re.sub(r"\d{2,}", "#", before) + line.stream) if before else line
            )
        return self._lines[number]

    def _learn_prefix(self) -> Optional[re.Pattern[str]]:
        """Return what some other tool puts before lines, if it does so before a traceback: containers, torchx, Kubernetes."""
        for at in self.where(_HEADLINE, 20):
            text = cleaned(self._raw[at])
            before = text[: text.index(_HEADLINE.decode())] if _HEADLINE.decode() in text else ""
            known = lines.KNOWN_PREFIX.search(before)
            before = before[: known.start()] if known else before
            label = next((one for one in (lines.TASK_LABEL, lines.HOST_LABEL) if one.fullmatch(before)), None)
            if label is not None:
                self._labels, self._looked_for_labels = label, True
                return None
            odd = not before.strip() or len(before) > 100 or re.search(r"[\"'%]", before) is not None
            if odd or _split(before, None, None).text == "":
                continue
            pattern = re.compile(re.sub(r"\d+", r"\\d+", re.escape(before)))
            frame = cleaned(self._raw[at + 1]) if at + 1 < len(self._raw) else ""
            if pattern.match(frame):  # not only a progress bar without a newline
                return pattern
        return None

    def where(self, sign: bytes, most: int = 400, end: Optional[int] = None) -> Iterator[int]:
        """Yield the numbers of the lines with this in them, of very many the first and the last; in the last ``end`` bytes."""
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

    def _labelled_by(self) -> Optional[re.Pattern[str]]:
        """Return how each line begins where srun put the task's number there, or pdsh the host's name: before nearly all."""
        if not self._looked_for_labels:
            self._looked_for_labels = True
            shown = [raw.decode("utf-8", "replace") for raw in self._raw[-400:] if raw.strip()]
            signs = (b"pdsh@", b"clush: ", b": [launch.py:", b"] [launch.py:")
            hosts = any(sign in self.data for sign in signs)
            for pattern in (lines.TASK_LABEL, *([lines.HOST_LABEL] if hosts else [])):
                count = sum(pattern.match(line[:200]) is not None for line in shown)
                if len(shown) >= 4 and count >= 0.6 * len(shown):
                    self._labels = pattern
                    break
        return self._labels


def _without_json(raw: bytes) -> bytes:
    """Return the text with the traceback of a line that is a JSON object, as structured loggers write it."""
    try:
        found = json.loads(raw) if raw.startswith(b"{") and b"Traceback" in raw else None
    except ValueError:
        return raw
    texts = [value for value in found.values() if isinstance(value, str)] if isinstance(found, dict) else []
    return "\n".join(one.rstrip() for one in texts if "Traceback (most" in one).encode() or raw


def cleaned(raw: bytes) -> str:
    """Bytes as text that a terminal may show, without colours; of a very long line its two ends."""
    if len(raw) > 4 * _LONGEST:
        raw = raw[: 3 * _LONGEST] + b" ... " + raw[-_LONGEST:]
    text = raw.decode("utf-8", "replace")
    text = _CONTROL.sub("", _ANSI.sub("", text))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 505]} ... {text[-500:]}"


def _split(text: str, rank: Optional[int], labels: Optional[re.Pattern[str]]) -> Line:
    at, host, found = 0, "", True
    label = labels.match(text) if labels is not None else None
    if label:
        at, groups = label.end(), label.groupdict()
        rank, host = int(groups["rank"]) if groups.get("rank") else rank, groups.get("host") or ""
    while found:
        found = False
        for pattern in lines.PREFIXES:
            match = pattern.match(text, at)
            if match:
                at, found, groups = match.end(), True, match.groupdict()
                rank = int(groups["rank"]) if groups.get("rank") else rank
                host = groups.get("host") or host
                break
    stream = text[:at]
    logged = lines.VLLM_ERROR.match(text, at)  # with the time, which is another one in each line
    at = logged.end() if logged else at
    behind = (
        lines.TRACEBACK_BEHIND.search(text, at)
        if labels is None and "Traceback (most recent" in text[at + 1 :]
        else None
    )
    if behind and text[at : behind.start()].strip():
        line = _split(text[behind.start() :], rank, None)
        return line._replace(stream=stream + line.stream)
    drawn = lines.GROUP_MARGIN.match(text, at) if text[at : at + 2] == "  " else None
    return Line(text[drawn.end() if drawn else at :], rank, stream, host)


class _Budget:
    """Time to search in: of the processor's, since a busy machine is no reason to find less; and at most five times that."""

    def __init__(self, seconds: float) -> None:
        self._work, self._until = time.process_time() + seconds, time.monotonic() + 5 * seconds

    @property
    def is_left(self) -> bool:
        return time.process_time() < self._work and time.monotonic() < self._until


def read(paths: Iterable[str], seconds: float = 0.7, begins: Optional[dict[str, int]] = None) -> list[Piece]:
    """Return the pieces of some logs that matter, in the order of the files; what cannot be read is left out.

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
    match = next(filter(None, (pattern.search(name) for pattern in lines.RANKS_IN_NAMES)), None)
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
    """Return where errors stand between head and tail, the last ones first: what came long before is seldom the end's cause."""
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
