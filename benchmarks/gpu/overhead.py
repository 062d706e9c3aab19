"""What a step costs beyond a bare loop on a GPU: a small and a large decoder, in turns in one process.

    python benchmarks/gpu/overhead.py [--tiny] [--json FILE]

Both loops compute the same in bf16 on samples of the same tensors, with the same optimizer; the bare one copies its
batches from pinned memory without waiting. The entrypoint has its metrics, stop check and hang watch on.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import gpu_hook
import torch
from step_overhead import Turns, interval

GOAL = 1.01


class Entrypoint(Turns):
    """The entrypoint's training, a turn at a time; ``end`` lets it go."""

    def __init__(self, document: dict[str, Any], folder: Path) -> None:
        self._over, self._ended = threading.Event(), threading.Event()
        super().__init__(lambda note: self._train(document, folder, note))

    def _train(self, document: dict[str, Any], folder: Path, note: Callable[[], None]) -> None:
        def noted() -> None:
            if self._over.is_set():
                raise gpu_hook.Enough
            note()

        try:
            common.train_here(document, folder, noted)
        finally:
            self._ended.set()

    def end(self) -> None:
        self._over.set()
        self._left = 2
        self._mine.release()
        self._ended.wait(60)


def bare(config: dict[str, Any], batch: int) -> Iterator[None]:
    """One step each time it is asked, as one would write it."""
    cfg = common.Plain(**config, deterministic=False)
    task, device = common.bare_task("Tokens"), common.device()
    model = task.model(cfg).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda" or None)
    (tokens,) = task.dataset(cfg, "train").tensors
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    while True:
        order = torch.randperm(len(tokens))
        for start in range(0, len(tokens), batch):
            rows = tokens.index_select(0, order[start : start + batch])
            if device.type == "cuda":
                rows = rows.pin_memory().to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = task.measure(model, (rows,))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield


def compare(
    name: str, config: dict[str, Any], batch: int, turns: int, steps: int, folder: Path
) -> dict[str, Any]:
    document = common.settings("Tokens", config, batch_size=batch, precision="bf16", log_every=10)
    mine = Entrypoint(document, folder / name)
    own_steps = bare(config, batch)

    def base(count: int) -> None:
        for _ in range(count):
            next(own_steps)

    asked = {"bare": base, "slurmgpu": mine.take}
    for take in asked.values():
        take(steps)
    found: dict[str, list[float]] = {each: [] for each in asked}
    for _ in range(turns):
        for each in random.sample(list(asked), len(asked)):
            common.finish()
            began = time.perf_counter()
            asked[each](steps)
            common.finish()
            found[each].append((time.perf_counter() - began) / steps)
    mine.end()
    pairs = list(zip(found["slurmgpu"], found["bare"], strict=True))
    parameters = sum(
        each.numel()
        for each in common.bare_task("Tokens").model(common.Plain(**config, deterministic=False)).parameters()
    )
    return {
        "parameters": parameters,
        "batch": [batch, config["length"]],
        "bare_step_seconds": statistics.median(found["bare"]),
        "extra_seconds": interval([own - base for own, base in pairs]),
        "ratio": interval([own / base for own, base in pairs]),
        "turns": turns,
        "steps_a_turn": steps,
    }


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    cases = {"small": (common.SMALL, 32, 40, 25), "large": (common.LARGE, 16, 30, 10)}
    if tiny:
        cases = {"small": (common.TINY, 4, 2, 3), "large": ({**common.TINY, "layers": 2}, 4, 2, 3)}
    result: dict[str, Any] = {"goal": GOAL}
    for name, (config, batch, turns, steps) in cases.items():
        result[name] = compare(name, {**config, "samples": 1024}, batch, turns, steps, folder)
        common.keep(result)
    return result


if __name__ == "__main__":
    common.main(__doc__, measure)
