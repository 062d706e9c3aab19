"""NVIDIA's GPUs by NVML, the library that nvidia-smi itself asks (nvml.h; docs.nvidia.com/deploy/nvml-api)."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from typing import Optional, Union

from .gpm import Gpm
from .readings import Reading, throttled_by

__all__ = ["Nvml"]

_LIBRARY = "libnvidia-ml.so.1"
_OK = 0
_SM_CLOCK, _TEMPERATURE_OF_GPU, _UNCORRECTED, _SINCE_BOOT, _UTILISATION_SAMPLES, _XID = 1, 0, 1, 0, 1, 8


class _Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    """With what the driver keeps for itself (some 600 MB on an H200) apart from what is used, as nvidia-smi tells it."""

    _fields_ = [
        ("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong),
    ]  # fmt: skip


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _Value(ctypes.Union):
    _fields_ = [
        ("double", ctypes.c_double),
        ("unsigned", c_uint),
        ("long", c_ulonglong),
        ("signed", c_longlong),
    ]


class _Sample(ctypes.Structure):
    _fields_ = [("time", c_ulonglong), ("value", _Value)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", c_void_p), ("type", c_ulonglong), ("data", c_ulonglong), ("instance", c_uint), ("compute", c_uint),
    ]  # fmt: skip


class Nvml:
    """The GPUs that this process sees; OSError or AttributeError where the library is not there or is no such library."""

    def __init__(self, library: str = _LIBRARY) -> None:
        self._lib = ctypes.CDLL(library)
        if self._lib.nvmlInit_v2() != _OK:
            raise OSError(f"{library} cannot be used")
        text = ctypes.create_string_buffer(96)
        version = (
            text.value.decode("ascii", "replace")
            if self._asked("SystemGetDriverVersion", text, c_uint(96))
            else ""
        )
        self.source = f"NVML {version}".strip()
        count = c_uint()
        if not self._asked("DeviceGetCount_v2", byref(count)):
            raise OSError(f"{library} counts no GPUs")
        self._devices: dict[int, c_void_p] = {}
        for index in range(min(count.value, 64)):
            device = c_void_p()
            if self._asked("DeviceGetHandleByIndex_v2", c_uint(index), byref(device)):
                self._devices[index] = device
        self._names = {
            index: (self._text(index, "UUID"), self._text(index, "Name")) for index in self._devices
        }
        self._seen = dict.fromkeys(self._devices, 0)
        self._events: Optional[c_void_p] = None
        self._gpm: Optional[Gpm] = None

    @property
    def found(self) -> list[tuple[int, Optional[str]]]:
        """Number and UUID of each GPU."""
        return [(index, uuid) for index, (uuid, _) in self._names.items()]

    def watch(self, indices: list[int]) -> None:
        """Keep to these, and have their errors (XID) reported, where the driver lets a user do so."""
        self._devices = {index: self._devices[index] for index in indices}
        self._gpm = Gpm(self._asked, self._devices)
        events = c_void_p()
        if not self._asked("EventSetCreate", byref(events)):
            return
        watched = [
            self._asked("DeviceRegisterEvents", device, c_ulonglong(_XID), events)
            for device in self._devices.values()
        ]
        self._events = events if any(watched) else None

    def read(self) -> list[Reading]:
        """Return every GPU; one that has fallen off the bus answers nothing, and has nothing but its number."""
        xids = self._xids()
        return [
            self._reading(index, device, xids.get(device.value or 0, ()))
            for index, device in self._devices.items()
        ]

    def _reading(self, index: int, device: c_void_p, xids: tuple[int, ...]) -> Reading:
        milliwatts, millijoules = c_uint(), c_ulonglong()
        clock, degrees, bits, errors = c_uint(), c_uint(), c_ulonglong(), c_ulonglong()
        uuid, name = self._names[index]
        memory = self._memory(device)
        has_bits = self._asked("DeviceGetCurrentClocksThrottleReasons", device, byref(bits))
        return Reading(
            number=index,
            uuid=uuid,
            name=name,
            utilisation=self._utilisation(index, device),
            sm_activity=self._gpm.sm_activity(index) if self._gpm else None,
            memory=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            power=milliwatts.value / 1e3
            if self._asked("DeviceGetPowerUsage", device, byref(milliwatts))
            else None,
            energy=millijoules.value / 1e3
            if self._asked("DeviceGetTotalEnergyConsumption", device, byref(millijoules))
            else None,
            clock=clock.value * 1_000_000
            if self._asked("DeviceGetClockInfo", device, c_int(_SM_CLOCK), byref(clock))
            else None,
            temperature=degrees.value
            if self._asked("DeviceGetTemperature", device, c_int(_TEMPERATURE_OF_GPU), byref(degrees))
            else None,
            throttled=throttled_by(bits.value) if has_bits else (),
            ecc_errors=errors.value
            if self._asked(
                "DeviceGetTotalEccErrors", device, c_int(_UNCORRECTED), c_int(_SINCE_BOOT), byref(errors)
            )
            else None,
            xids=xids,
        )

    def _memory(self, device: c_void_p) -> Union[_MemoryV2, _Memory, None]:
        """Used and in all, in bytes; drivers before 510 count their own share as used."""
        new, old = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24), _Memory()
        if self._asked("DeviceGetMemoryInfo_v2", device, byref(new)):
            return new
        return old if self._asked("DeviceGetMemoryInfo", device, byref(old)) else None

    def _utilisation(self, index: int, device: c_void_p) -> Optional[float]:
        """Return the mean of the driver's own samples since the last reading (it keeps some 16 s of them), else its last one."""
        kind, count = c_int(), c_uint()
        since = c_ulonglong(self._seen[index])
        if self._asked(
            "DeviceGetSamples", device, c_int(_UTILISATION_SAMPLES), since, byref(kind), byref(count), None
        ):
            samples = (_Sample * max(1, min(count.value, 4096)))()
            if count.value and self._asked(
                "DeviceGetSamples",
                device,
                c_int(_UTILISATION_SAMPLES),
                since,
                byref(kind),
                byref(count),
                samples,
            ):
                taken = [
                    one
                    for one in samples[: count.value]
                    if one.time > since.value and one.value.unsigned <= 100
                ]
                first = not self._seen[index]  # it may go back to the time before the job
                self._seen[index] = max((one.time for one in taken), default=self._seen[index])
                if taken and not first:
                    return float(sum(one.value.unsigned for one in taken)) / len(taken) / 100
        rates = _Rates()
        return rates.gpu / 100 if self._asked("DeviceGetUtilizationRates", device, byref(rates)) else None

    def _xids(self) -> dict[int, tuple[int, ...]]:
        """Return the errors since the last look, by the device that had them; nothing is waited for."""
        found: dict[int, tuple[int, ...]] = {}
        event = _Event()
        for _ in range(64):
            if self._events is None or not self._asked(
                "EventSetWait_v2", self._events, byref(event), c_uint(0)
            ):
                break
            device = event.device or 0
            found[device] = (*found.get(device, ()), int(event.data))
        return found

    def _text(self, index: int, what: str) -> Optional[str]:
        text = (c_char * 96)()
        asked = self._asked(f"DeviceGet{what}", self._devices[index], text, c_uint(96))
        return text.value.decode("utf-8", "replace") if asked else None

    def _asked(self, name: str, *arguments: object) -> bool:
        """Return True if a function of the library is there and could answer; older drivers lack some, some GPUs others."""
        function = getattr(self._lib, f"nvml{name}", None)
        return function is not None and function(*arguments) == _OK
