"""The numbers that a training computes with: fp32, or autocast to bf16 or fp16."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Optional

import torch

from .errors import SettingsError

__all__ = ["Precision", "can_bf16"]

_PLAIN = contextlib.nullcontext()
_AMPERE = (8, 0)  # the first compute capability with bf16 in hardware


class Precision:
    """The precision of the forward pass on a device, and the gradient scaler where one is needed (fp16)."""

    def __init__(self, name: str, device: torch.device, init_scale: float) -> None:
        self._device = device
        self._dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
        self.scaler: Optional[torch.amp.GradScaler] = None
        if name == "fp16":
            if device.type == "cpu" and not _cpu_computes_fp16():
                raise SettingsError(
                    "precision fp16 on the CPU needs torch 2.3 or newer, and here is "
                    f"{torch.__version__}: use fp32 or bf16 here"
                )
            # torch.amp.GradScaler came with 2.3; the older name warns from 2.4 on.
            if hasattr(torch.amp, "GradScaler"):
                self.scaler = torch.amp.GradScaler(device.type, init_scale=init_scale)
            else:
                self.scaler = torch.cuda.amp.GradScaler(init_scale=init_scale)
            # A first step that overflows is skipped by the scaler, as it should be; the schedule complains.
            warnings.filterwarnings(
                "ignore", message="Detected call of `lr_scheduler.step", category=UserWarning
            )
        if name == "bf16" and not can_bf16(device):
            capability = torch.cuda.get_device_capability(device)
            raise SettingsError(
                "precision bf16 needs a GPU of compute capability 8.0 or newer; "
                f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}: "
                "use fp16 or fp32"
            )

    @property
    def note(self) -> Optional[str]:
        """Return a remark on what a trial in this precision on the CPU shows, and what not; None where there is none."""
        if self._dtype is not torch.float16 or self._device.type != "cpu":
            return None
        return (
            "note: fp16 on the CPU is a trial of what a GPU does: autocast, scaled gradients, the scaler in each "
            "checkpoint, values too large for fp16; it shows neither the speed nor a GPU's last digits"
        )

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for the forward pass and the loss."""
        if self._dtype is None:
            return _PLAIN
        return torch.autocast(self._device.type, dtype=self._dtype)


def can_bf16(device: torch.device) -> bool:
    """Return True if the device computes in bf16; of GPUs that are not NVIDIA's it is taken for granted."""
    if device.type != "cuda" or not torch.version.cuda:
        return True
    return torch.cuda.get_device_capability(device) >= _AMPERE


def _cpu_computes_fp16() -> bool:
    """Return True if this torch has a scaler and autocast to fp16 for the CPU; an older one warns and computes in fp32."""
    if not hasattr(torch.amp, "GradScaler"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(RuntimeError), torch.autocast("cpu", dtype=torch.float16):
            return (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float16
    return False
