"""Figures of a line of metrics besides loss and times: memory, how busy the GPU is (NVML), FLOP/s, MFU."""

from __future__ import annotations

import importlib
import re
import resource
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Optional

import torch

from ..processes.group import Group
from ..settings import Settings

__all__ = ["PEAKS", "Gauges", "Utilisation", "peak_flops", "peak_memory"]

# Dense peaks by name, in TFLOP/s: bf16 and fp16, TF32 (None: not there), fp32. From NVIDIA's data sheets; where
# these give a figure with sparsity, half of it.
PEAKS: dict[str, tuple[float, Optional[float], float]] = {
    "Tesla V100-SXM2": (125.0, None, 15.7),
    "Tesla V100-PCIE": (112.0, None, 14.0),
    "Tesla T4": (65.0, None, 8.1),
    "NVIDIA A100": (312.0, 156.0, 19.5),
    "NVIDIA A30": (165.0, 82.0, 10.3),
    "NVIDIA A40": (149.7, 74.8, 37.4),
    "NVIDIA A10": (125.0, 62.5, 31.2),
    "NVIDIA L4": (121.0, 60.0, 30.3),
    "NVIDIA L40S": (362.0, 183.0, 91.6),
    "NVIDIA H100 PCIe": (756.0, 378.0, 51.0),
    "NVIDIA H100 80GB HBM3": (989.0, 494.0, 67.0),
    "NVIDIA H100 NVL": (835.0, 417.0, 60.0),
    "NVIDIA H200": (989.0, 494.0, 67.0),
    "NVIDIA H200 NVL": (835.0, 417.0, 60.0),
    "NVIDIA GH200": (989.0, 494.0, 67.0),
}
# CINECA's A100, built for it alone with more multiprocessors: no data sheet gives its peak.
_CUSTOM = "NVIDIA A100-SXM-64GB"
_PERIOD = 1.0  # NVML's figure is itself a mean, over up to a second


class Gauges:
    """Measures of a run; ``absent`` says of each value that it will not have why.

    ``flops``: floating-point operations of forward and backward pass per sample, if the task gives them.
    """

    def __init__(self, settings: Settings, group: Group, flops: Optional[float]) -> None:
        self.absent: dict[str, str] = {}
        self.paused = False  # what the device does now is not a step
        self._flops = flops
        self._utilisation = Utilisation(group.device)
        if self._utilisation.missing is not None:
            self.absent["gpu_utilization"] = self._utilisation.missing
        self._peak = self._peak_of_all(settings, group)

    def _peak_of_all(self, settings: Settings, group: Group) -> Optional[float]:
        """Of all the run's devices together, in FLOP/s."""
        if self._flops is None:
            self.absent["achieved_flops_per_second"] = self.absent["mfu"] = "the task has no flops(cfg)"
            return None
        devices = group.ranks.world_size
        if settings.strategy in ("dp", "model_parallel"):
            devices = max(1, torch.cuda.device_count())
        if settings.peak_flops is not None:
            return settings.peak_flops * devices
        if group.device.type != "cuda":
            self.absent["mfu"] = "no peak is known for a CPU; the setting peak_flops gives one"
            return None
        name = torch.cuda.get_device_name(group.device)
        peak = peak_flops(name, settings.precision, settings.tf32)
        if peak is None:
            self.absent["mfu"] = f"no peak is known for {name}; the setting peak_flops gives one"
            return None
        return peak * devices

    @property
    def any(self) -> bool:
        """True if there is anything to measure."""
        return self._flops is not None or self._utilisation.missing is None

    def look(self) -> None:
        """Do what a background thread does now and then."""
        if not self.paused:
            self._utilisation.look()

    def values(self, times: Mapping[str, float]) -> dict[str, float]:
        """Return what is known now, for a line with these times."""
        found: dict[str, float] = {}
        busy = self._utilisation.mean()
        if busy is not None:
            found["gpu_utilization"] = busy
        if self._flops is not None:
            found["achieved_flops_per_second"] = self._flops * times["samples_per_second"]
            if self._peak is not None:
                found["mfu"] = found["achieved_flops_per_second"] / self._peak
        return found


def peak_memory(device: torch.device) -> int:
    """Bytes: the most that torch has had in use on the GPU; on the CPU the largest resident set of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes, but on macOS bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_flops(name: str, precision: str, tf32: bool) -> Optional[float]:
    """Return the dense peak of a whole GPU in FLOP/s; None for one that is not in the table, and for a part of one.

    ``precision`` as in the settings; fp32 with ``tf32`` counts as TF32 on GPUs that have it.
    """
    fitting = [each for each in PEAKS if re.match(re.escape(each) + r"(?![0-9A-Za-z])", name)]
    if not fitting or " MIG " in name or name.startswith(_CUSTOM):
        return None
    half, tf, single = PEAKS[max(fitting, key=len)]
    if precision in ("bf16", "fp16"):
        return half * 1e12
    return (tf if tf32 and tf is not None else single) * 1e12


class Utilisation:
    """The share of time in which a GPU had work, as NVML sees it; ``missing`` says why it is not known."""

    def __init__(self, device: torch.device) -> None:
        self.missing: Optional[str] = None
        self._samples: list[float] = []
        self._looked = -_PERIOD
        self._nvml = ModuleType("pynvml")
        self._handle: object = None
        try:
            if device.type != "cuda" or torch.version.hip:
                raise LookupError("there is no NVIDIA GPU here")
            self._nvml = _nvml()
            self._handle = _handle(self._nvml, device)
            self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        except Exception as error:  # of a driver, a container or a part of a GPU: no reason to stop
            self._handle = None
            self.missing = str(error) or type(error).__name__

    def look(self) -> None:
        """Take a sample, once a second at most; from a background thread, because it calls the driver."""
        if self._handle is None or time.monotonic() - self._looked < _PERIOD:
            return
        self._looked = time.monotonic()
        try:
            self._samples.append(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
        except Exception:  # the line then has no such value, which says it
            return

    def mean(self) -> Optional[float]:
        """Return the mean of the samples since the last call, from 0 to 1; None without one."""
        samples, self._samples = self._samples, []
        return sum(samples) / len(samples) if samples else None


def _nvml() -> ModuleType:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise LookupError("the package nvidia-ml-py is not installed") from None
    nvml.nvmlInit()
    return nvml


def _handle(nvml: ModuleType, device: torch.device) -> object:
    """NVML's handle of torch's device, by UUID: the numbers differ where CUDA_VISIBLE_DEVICES picks some."""
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        raise LookupError("this torch does not tell the GPU's UUID (2.4 and newer do)")
    if " MIG " in properties.name:
        raise LookupError("NVML does not report the utilisation of a part of a GPU (MIG)")
    bare = str(uuid)
    return nvml.nvmlDeviceGetHandleByUUID(bare if bare.startswith("GPU-") else f"GPU-{bare}")
