"""A trace of torch's profiler: its events, read one after the other, sorted into tracks of a few dozen bytes for each.

Spans of time are pairs (start, end); a set of time is a sorted list of spans that neither touch nor overlap.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Optional

__all__ = [
    "PHASES", "Span", "Timeline", "Track", "Unreadable",
    "common", "events", "length", "longer", "merged", "timeline", "without",
]  # fmt: skip

Span = tuple[float, float]
PHASES = ("data", "forward", "backward", "optimizer", "evaluating", "saving")
"""A phase of the loop as a profile marks it: an annotation ``slurmgpu.data``, and so on."""

_STEP = re.compile(r"ProfilerStep#(\d+)")
_OURS = "slurmgpu."
# torch marks its own loader, in traces of other loops.
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__")
_COLLECTIVE = re.compile(r"nccl|rccl|^(gloo|mpi|ucc|xccl):", re.IGNORECASE)
_WAITS = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize")
_MATRIX = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_?convolution|linear|_scaled_dot_product\w*)$")

_PIECE = 1 << 20  # characters read at a time
_LONGEST = 1 << 24  # characters of one event; what is longer is none
_MOST_GROWTH = 200
_BEGINNING = 1 << 22  # characters that may stand before the list of events


class Unreadable(Exception):
    """It is no trace, or one that is too large."""


def events(path: Path, most: Optional[int] = None) -> Iterator[dict[str, Any]]:
    """Yield each event of a trace that torch's profiler wrote, gzipped or not, with at most a few mebibytes in memory.

    Raises:
        Unreadable: it is no such file, is cut off, or has more than ``most`` characters.
    """
    try:
        with _opened(path) as file:
            # A real trace shrinks to a twentieth; a small file must not stand for any amount.
            yield from _events(file, most or _MOST_GROWTH * (path.stat().st_size + (1 << 20)))
    except (EOFError, zlib.error):
        raise Unreadable("it is cut off, or damaged") from None
    except UnicodeDecodeError:
        raise Unreadable("it is not text") from None
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    # It may lie in somebody else's folder: a pipe in its place would never end.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Unreadable("it is no file")
    with os.fdopen(number, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not zipped:
            yield io.TextIOWrapper(file, encoding="utf-8")
            return
        with gzip.GzipFile(fileobj=file) as inner:
            yield io.TextIOWrapper(inner, encoding="utf-8")


def _events(file: IO[str], most: Optional[int]) -> Iterator[dict[str, Any]]:
    text, at = _list_of(file)
    total, decode = len(text), json.JSONDecoder(strict=False).raw_decode
    while True:
        at = _next(text, at)
        if text[at : at + 1] == "]":
            return
        try:
            event, at = decode(text, at)
        except (ValueError, RecursionError):
            # Cut off by the end of the piece, as long as it goes on.
            piece = file.read(_PIECE)
            if not piece or len(text) - at > _LONGEST:
                raise Unreadable("it is cut off, or it is no trace of torch's profiler") from None
            text, at = text[at:] + piece, 0
            total += len(piece)
            if most is not None and total > most:
                raise Unreadable(f"it has more than {most >> 20} MiB") from None
            continue
        if isinstance(event, dict):
            yield event


def _next(text: str, at: int) -> int:
    found = re.compile(r"[ \t\r\n,]*").match(text, at)
    return found.end() if found else at


def _list_of(file: IO[str]) -> tuple[str, int]:
    """Return the first piece of text with the list's beginning, and where its first event is."""
    text = ""
    while len(text) < _BEGINNING:
        piece = file.read(_PIECE)
        text += piece
        if text.lstrip()[:1] == "[":
            return text, text.index("[") + 1
        found = text.find('"traceEvents"')
        start = text.find("[", found) if found >= 0 else -1
        if start >= 0:
            return text, start + 1
        if not piece:
            break
    raise Unreadable("it is no trace of torch's profiler: it has no traceEvents")


@dataclass
class Track:
    """Spans of one kind, each with a number for its name, in the trace's microseconds."""

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    names: array[int] = field(default_factory=lambda: array("L"))

    def add(self, start: float, end: float, name: int) -> None:
        """One more."""
        self.starts.append(start)
        self.ends.append(end)
        self.names.append(name)

    def inside(self, start: float, end: float) -> list[tuple[float, float, int]]:
        """Those that begin within a window, in order; the longer one first where two begin together."""
        chosen = [
            (begin, until, name)
            for begin, until, name in zip(self.starts, self.ends, self.names)
            if start <= begin < end
        ]
        chosen.sort(key=lambda each: (each[0], -each[1]))
        return chosen


@dataclass
class Timeline:
    """The tracks of one trace; ``thread`` is the one that takes the steps."""

    names: list[str] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    thread: Optional[tuple[object, object]] = None
    operators: dict[tuple[object, object], Track] = field(default_factory=dict)
    functions: dict[tuple[object, object], Track] = field(default_factory=dict)
    """Python's, where stacks were recorded."""
    phases: dict[str, list[Span]] = field(default_factory=dict)
    kernels: Track = field(default_factory=Track)
    collectives: Track = field(default_factory=Track)
    copies: Track = field(default_factory=Track)
    copied: array[float] = field(default_factory=lambda: array("d"))
    """Bytes of each of the copies; 0 where the trace does not say."""
    waits: Track = field(default_factory=Track)
    types: dict[str, int] = field(default_factory=dict)
    """Number of matrix products and convolutions by their type of numbers."""

    @property
    def window(self) -> Span:
        """From the first step's begin to the last one's end; without steps, from the first event to the last."""
        if self.steps:
            return self.steps[0][0], self.steps[-1][1]
        tracks = [*self.operators.values(), self.kernels, self.collectives, self.copies]
        starts = [min(track.starts) for track in tracks if track.starts]
        ends = [max(track.ends) for track in tracks if track.ends]
        return (min(starts), max(ends)) if starts else (0.0, 0.0)

    @property
    def own(self) -> Track:
        """The operators of the thread that takes the steps; without steps, of the one with most of them."""
        if self.thread is not None:
            return self.operators.get(self.thread, Track())
        return max(self.operators.values(), key=lambda track: len(track.starts), default=Track())

    def in_phase(self, *names: str) -> list[Span]:
        """When the loop was at any of these."""
        return merged(span for name in names for span in self.phases.get(name, ()))


def timeline(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Sort the events of a trace into tracks."""
    found = Timeline()
    numbers: dict[str, int] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        start, seconds, name = event.get("ts"), event.get("dur"), event.get("name")
        if not isinstance(start, (int, float)) or not isinstance(seconds, (int, float)):
            continue
        number = numbers.setdefault(str(name), len(numbers))
        _sort_in(found, event, str(name), number, (float(start), float(start) + float(seconds)))
    found.names = list(numbers)
    found.steps.sort()
    return found


def _sort_in(found: Timeline, event: Mapping[str, Any], name: str, number: int, span: Span) -> None:
    kind = str(event.get("cat", "")).lower()
    thread = (event.get("pid"), event.get("tid"))
    if kind == "cpu_op" or kind == "operator":
        if _LOADER.match(name):
            found.phases.setdefault("data", []).append(span)
            return
        found.operators.setdefault(thread, Track()).add(*span, number)
        if _MATRIX.match(name):
            _note_type(found, event)
    elif kind == "python_function":
        found.functions.setdefault(thread, Track()).add(*span, number)
    elif kind == "kernel":
        (found.collectives if _COLLECTIVE.search(name) else found.kernels).add(*span, number)
    elif kind in ("gpu_memcpy", "memcpy"):
        if "DtoD" in name or "Device -> Device" in name:
            found.kernels.add(*span, number)
            return
        found.copies.add(*span, number)
        size = _arguments(event).get("bytes")
        found.copied.append(float(size) if isinstance(size, (int, float)) else 0.0)
    elif kind in ("gpu_memset", "memset"):
        found.kernels.add(*span, number)
    elif kind in ("cuda_runtime", "runtime", "hip_runtime"):
        if _WAITS.match(name):
            found.waits.add(*span, number)
    elif kind == "user_annotation":
        _annotated(found, name, number, thread, span)


def _annotated(found: Timeline, name: str, number: int, thread: tuple[object, object], span: Span) -> None:
    if _STEP.match(name):
        found.steps.append(span)
        found.thread = thread
    elif name.startswith(_OURS):
        found.phases.setdefault(name[len(_OURS) :], []).append(span)
    elif _LOADER.match(name):
        found.phases.setdefault("data", []).append(span)
    elif _COLLECTIVE.search(name) and not name.startswith("nccl:"):  # nccl's have kernels
        found.collectives.add(*span, number)


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _note_type(found: Timeline, event: Mapping[str, Any]) -> None:
    types = _arguments(event).get("Input type")
    for each in types if isinstance(types, list) else ():
        # An empty one is no tensor; the first that is one tells.
        if isinstance(each, str) and each and each not in ("Scalar", "ScalarList", "TensorList"):
            found.types[each] = found.types.get(each, 0) + 1
            return


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return what any of the spans covers."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Return how long all of them are together."""
    return sum(end - start for start, end in spans)


def common(one: list[Span], two: list[Span]) -> list[Span]:
    """Return what both cover."""
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(two):
        start, end = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(one: list[Span], two: list[Span]) -> list[Span]:
    """Return what the first covers and the second does not."""
    found: list[Span] = []
    j = 0
    for start, end in one:
        while j < len(two) and two[j][1] <= start:
            j += 1
        k = j
        while k < len(two) and two[k][0] < end:
            if two[k][0] > start:
                found.append((start, two[k][0]))
            start = max(start, two[k][1])
            k += 1
        if start < end:
            found.append((start, end))
    return found


def longer(spans: Iterable[Span], than: float) -> list[Span]:
    """Those of at least this length."""
    return [(start, end) for start, end in spans if end - start >= than]
