"""Share of a GPU's SMs that were busy, by NVML's performance counters (GPM): Hopper and newer, for any user.

Means between two readings of the counters, which NVML wants at least 0.1 s apart (nvml.h;
docs.nvidia.com/deploy/nvml-api, GPM Functions). On older GPUs only DCGM's profiling tells, which takes the counters away from
a job that profiles itself: there it is not measured.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_int, c_uint, c_void_p
from typing import Callable, Optional

__all__ = ["Gpm"]

_OK, _VERSION, _SM_UTIL = 0, 1, 2
_ROOM = 512  # metrics that a newer library may reach for, though it is asked for one


class _Support(ctypes.Structure):
    _fields_ = [("version", c_uint), ("supported", c_uint)]


class _Metric(ctypes.Structure):
    _fields_ = [("id", c_uint), ("status", c_int), ("value", c_double), ("names", c_void_p * 3)]


class _Question(ctypes.Structure):
    _fields_ = [
        ("version", c_uint), ("count", c_uint), ("before", c_void_p), ("now", c_void_p), ("metrics", _Metric * _ROOM),
    ]  # fmt: skip


class Gpm:
    """The counters of some GPUs; ``asked`` calls a function of NVML, and says whether it could answer."""

    def __init__(self, asked: Callable[..., bool], devices: dict[int, c_void_p]) -> None:
        self._asked = asked
        self._devices = {index: device for index, device in devices.items() if self._counts(device)}
        self._before: dict[int, c_void_p] = {}

    def _counts(self, device: c_void_p) -> bool:
        support = _Support(_VERSION, 0)
        return self._asked("GpmQueryDeviceSupport", device, byref(support)) and support.supported == 1

    def sm_activity(self, index: int) -> Optional[float]:
        """Return the mean share of its SMs that were busy since the last call, 0 to 1; None where that is not known."""
        if index not in self._devices:
            return None
        now = c_void_p()
        if not self._asked("GpmSampleAlloc", byref(now)):
            return None
        if not self._asked("GpmSampleGet", self._devices[index], now):
            self._asked("GpmSampleFree", now)
            return None
        before, self._before[index] = self._before.get(index), now
        if before is None:
            return None
        share = self._between(before, now)
        self._asked("GpmSampleFree", before)
        return share

    def _between(self, before: c_void_p, now: c_void_p) -> Optional[float]:
        question = _Question(_VERSION, 1, before, now)
        question.metrics[0].id = _SM_UTIL
        if not self._asked("GpmMetricsGet", byref(question)):
            return None
        one = question.metrics[0]
        return float(one.value) / 100 if one.status == _OK and 0 <= one.value <= 100 else None
