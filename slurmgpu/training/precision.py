"""The numbers that a training computes with: fp32, or autocast to bf16 or fp16."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Any, Optional

import torch

from .errors import SettingsError

__all__ = ["Precision"]

_PLAIN = contextlib.nullcontext()
_AMPERE = (8, 0)  # the first compute capability with bf16 in hardware


class Precision:
    """How the forward pass is computed on a device, and the gradient scaler where one is needed (fp16)."""

    def __init__(self, name: str, device: torch.device, init_scale: float) -> None:
        self._device = device
        self._dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
        self.scaler: Optional[Any] = None
        if name == "fp16":
            if device.type != "cuda":
                raise SettingsError("precision fp16 needs a GPU, and none is visible here; use fp32 or bf16")
            # torch.amp.GradScaler came with 2.3; the older name warns from 2.4 on.
            new = hasattr(torch.amp, "GradScaler")
            self.scaler = (torch.amp if new else torch.cuda.amp).GradScaler(init_scale=init_scale)
            # A first step that overflows is skipped by the scaler, as it should be; the schedule complains.
            warnings.filterwarnings(
                "ignore", message="Detected call of `lr_scheduler.step", category=UserWarning
            )
        if name == "bf16" and device.type == "cuda" and torch.version.cuda:
            capability = torch.cuda.get_device_capability(device)
            if capability < _AMPERE:
                raise SettingsError(
                    "precision bf16 needs a GPU of compute capability 8.0 or newer; "
                    f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}: "
                    "use fp16 or fp32"
                )

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for the forward pass and the loss."""
        if self._dtype is None:
            return _PLAIN
        return torch.autocast(self._device.type, dtype=self._dtype)
