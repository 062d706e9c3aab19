"""What a line of metrics says beside loss and times: memory, how busy the GPU is, FLOP/s, MFU, the slowest rank."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from typing import Optional

import torch

from ..processes.group import Group
from ..settings import Settings
from .gpus import Utilisation, peak_flops

__all__ = ["Gauges", "peak_memory"]


class Gauges:
    """Measures of a run; ``absent`` says of each value that it will not have why.

    ``flops``: floating-point operations of forward and backward pass per sample, if the task gives them.
    """

    def __init__(self, settings: Settings, group: Group, flops: Optional[float]) -> None:
        self.absent: dict[str, str] = {}
        self.paused = False  # what the device does now is no step
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
        if settings.strategy == "dp":
            devices = max(1, torch.cuda.device_count())
        if settings.peak_flops is not None:
            return settings.peak_flops * devices
        if group.device.type != "cuda":
            self.absent["mfu"] = "no peak is known of a CPU; the setting peak_flops gives one"
            return None
        name = torch.cuda.get_device_name(group.device)
        peak = peak_flops(name, settings.precision, settings.tf32)
        if peak is None:
            self.absent["mfu"] = f"no peak is known of {name}; the setting peak_flops gives one"
            return None
        return peak * devices

    @property
    def any(self) -> bool:
        """Whether there is anything to measure."""
        return self._flops is not None or self._utilisation.missing is None

    def look(self) -> None:
        """What a background thread does now and then."""
        if not self.paused:
            self._utilisation.look()

    def values(self, times: Mapping[str, float]) -> dict[str, float]:
        """What is known now, for a line with these times."""
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
