"""The random state of one rank: seeded, captured and restored."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["capture", "restore", "seed_all"]


def seed_all(seed: int) -> None:
    """Seed Python, torch (all devices) and numpy where it is loaded."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def capture(device: torch.device) -> dict[str, object]:
    """Return the random state as plain values and tensors, so that ``weights_only`` can read it back."""
    state: dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
        if torch.cuda.device_count() > 1:  # DataParallel's replicas draw from those of their own devices
            state["all_cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (str(kind), [int(key) for key in keys], *(float(value) for value in rest))
    return state


def restore(state: Mapping[str, Any], device: torch.device) -> None:
    """Put a captured random state back; parts that do not exist here are left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and len(state.get("all_cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["all_cuda"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, gauss = state["numpy"]
        keys = numpy.array(keys, dtype=numpy.uint32)
        numpy.random.set_state((kind, keys, int(position), int(has_gauss), gauss))
