"""What a trace holds that tells of its steps, in arrays: a few dozen bytes for each event."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from .intervals import Span, merged

__all__ = ["PHASES", "Timeline", "Track", "timeline"]

PHASES = ("data", "forward", "backward", "optimizer", "evaluating", "saving")
"""What the loop is at, as a profile marks it: an annotation ``slurmgpu.data``, and so on."""

_STEP = re.compile(r"ProfilerStep#(\d+)")
_OURS = "slurmgpu."
# torch marks its own loader, in traces of other loops.
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__")
_COLLECTIVE = re.compile(r"nccl|rccl|^(gloo|mpi|ucc|xccl):", re.IGNORECASE)
_WAITS = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize")
_MATRIX = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_?convolution|linear|_scaled_dot_product\w*)$")


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
    """How many matrix products and convolutions were given which type of numbers."""

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
