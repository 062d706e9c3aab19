"""A reading of a GPU at one moment, and the sums since the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

__all__ = ["Reading", "Totals", "own", "throttled_by"]


class Reading(NamedTuple):
    """One GPU at one moment; None: not measured."""

    number: int
    uuid: Optional[str] = None
    name: Optional[str] = None
    utilisation: Optional[float] = None
    """0 to 1: a kernel ran; over the time since the last reading where the driver keeps that, else over its last second."""
    memory: Optional[int] = None
    """Bytes in use."""
    memory_total: Optional[int] = None
    power: Optional[float] = None
    """Watts."""
    energy: Optional[float] = None
    """Joules, by the GPU's own counter, from wherever that began."""
    clock: Optional[int] = None
    """Of the SMs, in hertz."""
    temperature: Optional[float] = None
    """Degrees Celsius."""
    throttled: tuple[str, ...] = ()
    ecc_errors: Optional[int] = None
    """Uncorrected ones, by a counter."""
    xids: tuple[int, ...] = ()
    """NVIDIA's error numbers since the last reading."""
    sm_activity: Optional[float] = None
    """0 to 1: the share of its SMs that were busy, over the time since the last reading."""


# nvmlClocksEventReasons in nvml.h; idle, a user's own clocks and the like are no trouble.
_REASONS = {
    0x4: "power",  # software power cap
    0x8: "hardware",  # slowdown: too hot, or the supply says so
    0x20: "thermal",  # software thermal slowdown
    0x40: "thermal",  # hardware thermal slowdown
    0x80: "power brake",
}


def throttled_by(bits: int) -> tuple[str, ...]:
    """Return why a GPU's clock is held down, by NVML's bits."""
    return tuple(sorted({why for bit, why in _REASONS.items() if bits & bit}))


class Totals:
    """One GPU's totals since its first reading; each sample carries them, so that no sample is needed for another."""

    def __init__(self) -> None:
        self._last: Optional[Reading] = None
        self._at = 0.0
        self._busy = self._watched = 0.0
        self._sm_busy = self._sm_watched = 0.0
        self._energy = self._powered = 0.0
        self._peak: Optional[int] = None
        self._ecc: Optional[int] = None
        self._xids: list[int] = []
        self._ever: set[str] = set()

    def take(self, reading: Reading, now: float) -> dict[str, object]:
        """Add a reading, and return what a sample says of the GPU; ``now``: seconds of a clock that never goes back."""
        passed = now - self._at if self._last is not None else 0.0
        if reading.utilisation is not None and passed:
            self._busy += reading.utilisation * passed
            self._watched += passed
        if reading.sm_activity is not None and passed:
            self._sm_busy += reading.sm_activity * passed
            self._sm_watched += passed
        joules = self._joules(reading, passed)
        if joules is not None:
            self._energy += joules
            self._powered += passed
        if reading.memory is not None:
            self._peak = max(self._peak or 0, reading.memory)
        before = self._last.ecc_errors if self._last else None
        if reading.ecc_errors is not None:
            self._ecc = (self._ecc or 0) + max(
                0, reading.ecc_errors - (before if before is not None else reading.ecc_errors)
            )
        self._xids = sorted({*self._xids, *reading.xids})[:64]
        self._ever.update(reading.throttled)
        self._last, self._at = reading, now
        return {
            "index": reading.number,
            "utilisation": _rounded(reading.utilisation, 4),
            "busy_seconds": _rounded(self._busy if self._watched else None, 3),
            "busy_of_seconds": _rounded(self._watched if self._watched else None, 3),
            "sm_activity": _rounded(reading.sm_activity, 4),
            "sm_seconds": _rounded(self._sm_busy if self._sm_watched else None, 3),
            "sm_of_seconds": _rounded(self._sm_watched if self._sm_watched else None, 3),
            "memory": reading.memory,
            "memory_peak": self._peak,
            "power": _rounded(reading.power, 2),
            "energy": _rounded(self._energy if self._powered else None, 2),
            "energy_of_seconds": _rounded(self._powered if self._powered else None, 3),
            "clock": reading.clock,
            "temperature": reading.temperature,
            "throttled": list(reading.throttled),
            "throttled_ever": sorted(self._ever),
            "ecc_errors": self._ecc,
            "xids": self._xids,
        }

    def _joules(self, reading: Reading, passed: float) -> Optional[float]:
        """Since the last reading: by the counter, or by the mean of both readings' power."""
        last = self._last
        if last is None or not passed:
            return None
        if reading.energy is not None and last.energy is not None and reading.energy >= last.energy:
            return reading.energy - last.energy
        if reading.power is None or last.power is None:
            return None
        return (reading.power + last.power) / 2 * passed


def _rounded(value: Optional[float], digits: int) -> Optional[float]:
    return None if value is None else round(value, digits)


def own(
    found: Sequence[tuple[int, Optional[str]]], named: Optional[str], expected: Optional[int]
) -> Optional[list[int]]:
    """Return which of the GPUs that are seen are the job's: their numbers; None where that cannot be told.

    ``found``: number and UUID of each; ``named``: what CUDA_VISIBLE_DEVICES or its like says, None where it is not set;
    ``expected``: how many the job has on this node. Slurm counts from 0 within what the job sees (gres.conf(5)).
    """
    if named is not None:
        words = [word.strip() for word in named.split(",") if word.strip()]
        if words == ["-1"] or words == ["NoDevFiles"]:
            return []
        picked = [_picked(word, found) for word in words]
        if all(one is not None for one in picked):
            return [one for one in picked if one is not None]
    if expected is not None and len(found) == expected:
        return [
            index for index, _ in found
        ]  # the control group hides the others, or the job has the whole node
    return None


def _picked(word: str, found: Iterable[tuple[int, Optional[str]]]) -> Optional[int]:
    for index, uuid in found:
        if word == str(index) or (uuid is not None and len(word) > 6 and uuid.startswith(word)):
            return index
    return None
