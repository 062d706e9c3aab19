"""What mixed precision brings: samples a second of the entrypoint in fp32, TF32, bf16 and fp16.

    python benchmarks/gpu/amp.py [--tiny] [--json FILE]

A decoder and a residual network of images (channels last, on the GPU). After some steps the clock runs from one
synchronised point to another. On the CPU there is no TF32, and fp16 is there for trials alone: both are left out.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import common
import gpu_hook
import torch

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "tf32": False},
    "tf32": {"precision": "fp32", "tf32": True},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
}


class Clock:
    """Times ``steps`` steps after the first ``before``, and then has had enough."""

    def __init__(self, before: int, steps: int) -> None:
        self._before, self._last = before, before + steps
        self._calls = 0
        self.seconds = 0.0

    def __call__(self) -> None:
        if self._calls == self._before:
            common.finish()
            self.seconds = -time.perf_counter()
        if self._calls == self._last:
            common.finish()
            self.seconds += time.perf_counter()
            raise gpu_hook.Enough
        self._calls += 1


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    tokens, images = {**common.LARGE, "samples": 512}, {"depths": [3, 4, 6, 3], "size": 224, "samples": 512}
    cases = {
        "decoder": ("Tokens", tokens, 16, {}),
        "residual": ("Images", images, 128, {"channels_last": True}),
    }
    before, steps = 10, 20
    if tiny:
        tokens, images = {**common.TINY, "samples": 64}, {"depths": [1, 1], "size": 32, "samples": 16}
        cases = {
            "decoder": ("Tokens", tokens, 4, {}),
            "residual": ("Images", images, 4, {"channels_last": True}),
        }
        before, steps = 1, 2
    on_gpu = torch.cuda.is_available()
    result: dict[str, Any] = {"left_out": [] if on_gpu else ["tf32", "fp16"]}
    for case, (task, config, batch, more) in cases.items():
        rates: dict[str, float] = {}
        for name, values in PRECISIONS.items():
            if name in result["left_out"]:
                continue
            clock = Clock(before, steps)
            document = common.settings(task, config, batch_size=batch, **values, **more)
            common.train_here(document, folder / f"{case}-{name}", clock)
            rates[name] = batch * steps / clock.seconds
            result[case] = {"batch": batch, "steps": steps, "samples_per_second": rates}
            common.keep(result)
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
        speedups = {name: rate / rates["fp32"] for name, rate in rates.items()}
        result[case] = {"batch": batch, "steps": steps, "samples_per_second": rates, "speedup": speedups}
    return result


if __name__ == "__main__":
    common.main(__doc__, measure)
