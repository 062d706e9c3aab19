"""The machine that is measured, and how long the parts of a step take on it."""

from __future__ import annotations

import itertools
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import torch

from ..processes.ranks import cpu_model

__all__ = ["Pace", "Spread", "cpus", "doubled", "given_by_slurm", "machine_facts", "spread", "timed"]


def cpus() -> int:
    """CPUs that this process may use: in a job, at most those that it has on this node, even where nothing binds it to them."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(able, given_by_slurm() or able)


def given_by_slurm() -> Optional[int]:
    """CPUs that the job has on this node; None outside of jobs."""
    text = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return int(text) if text.isdecimal() and int(text) else None


def doubled(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most."""
    found = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*found, most]


def machine_facts() -> dict[str, Any]:
    """Return the node, its processors, and the software; what is not known is null. ``when`` is in UTC."""
    return {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        "cpu": cpu_model(),
        "cpus": cpus(),
        "load": round(os.getloadavg()[0], 2),
        "gpus": _gpus(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = (torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count()))
    return [{"name": each.name, "bytes": each.total_memory} for each in found]


class Pace(NamedTuple):
    """Number of rounds of a measurement: at least so many times, then until the time is up or it was ``most`` times."""

    warm_up: int = 3
    least: int = 5
    most: int = 50
    seconds: float = 5.0


class Spread(NamedTuple):
    """Summary of several measurements, in their unit."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most."""
    return Spread(statistics.median(values), min(values), max(values))


class _Clock(Protocol):
    def mark(self) -> None: ...

    def laps(self) -> list[float]: ...


class _Wall:
    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def laps(self) -> list[float]:
        found = [after - before for before, after in zip(self._marks, self._marks[1:])]
        self._marks.clear()
        return found


class _Events:
    """On a GPU the host runs ahead: what is timed are marks in the stream."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def mark(self) -> None:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def laps(self) -> list[float]:
        torch.cuda.synchronize()
        found = [before.elapsed_time(after) / 1000 for before, after in zip(self._marks, self._marks[1:])]
        self._marks.clear()
        return found


def timed(parts: Sequence[Callable[[], None]], device: torch.device, pace: Pace) -> list[list[float]]:
    """Run all parts one after the other, again and again; for each round the seconds that each part took."""
    clock: _Clock = _Events() if device.type == "cuda" else _Wall()
    rounds: list[list[float]] = []
    ends = 0.0
    for number in itertools.count():
        if number == pace.warm_up:
            ends = time.perf_counter() + pace.seconds
        clock.mark()
        for part in parts:
            part()
            clock.mark()
        laps = clock.laps()
        if number >= pace.warm_up:
            rounds.append(laps)
        if len(rounds) >= pace.most or (len(rounds) >= pace.least and time.perf_counter() >= ends):
            break
    return rounds
