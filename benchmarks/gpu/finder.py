"""Whether ``micro_batch: auto`` finds on a GPU what brute force finds, where another program has most of the memory.

    python benchmarks/gpu/finder.py [--tiny] [--json FILE]

Another process takes all of the memory but some gigabytes, as whoever shares a GPU does. The finder leaves its tenth of the
whole free. Brute force takes two steps of each size with what the finder may have as the allocator's limit, a size after the
other to a fiftieth, in one process. Then the finder's size is trained.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common
import torch

HEAD_ROOM = 0.1
LEFT = 20 << 30  # bytes that the other process leaves
BALLAST = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
kept = [torch.empty(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(max(0, free - int(sys.argv[1])) >> 28)]
torch.cuda.synchronize()
print("taken", flush=True)
sys.stdin.read()
"""
CASES = {
    "decoder": ("Tokens", {**common.SMALL, "samples": 1 << 16}, {"precision": "bf16"}),
    "decoder, checkpointed": (
        "Gpt2",
        {"size": "124M"},
        {"precision": "bf16", "activation_checkpointing": True},
    ),
    "convolutions": (
        "Pictures",
        {"depth": 50, "samples": 8192},
        {"precision": "bf16", "channels_last": True},
    ),
}


def trained(folder: Path, document: dict[str, Any], **values: Any) -> tuple[int, str]:
    folder.mkdir(parents=True)
    (folder / "train.json").write_text(json.dumps({**document, **values}))
    environment = {**os.environ, "SLURMGPU_RUN_DIR": str(folder), "PYTHONPATH": str(common.ROOT)}
    environment["XDG_CACHE_HOME"] = str(folder)
    command = [sys.executable, "-m", "slurmgpu.training"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    return done.returncode, done.stdout + done.stderr


def fits(name: str, size: int) -> bool:
    """Whether two steps of two such micro-batches each stay below the allocator's limit."""
    from slurmgpu.training.fitting.memory import ran_out

    task, config, values = CASES[name]
    document = common.settings(task, config, **values, max_steps=2)
    try:
        common.train_here(
            {
                **document,
                "micro_batch": size,
                "batch_size": 2 * size,
                "checkpoint_share": None,
                "sanity": False,
            },
            Path(os.environ["FINDER_FOLDER"]) / f"{name}-{size}",
        )
    except BaseException as error:
        if not ran_out(error):
            raise
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return True


def brute_force(name: str, start: int) -> int:
    """The largest size that fits, to a fiftieth."""
    low, high = 0, start
    while fits(name, high):
        low, high = high, max(high + 1, int(high * 1.1))
    while not low and high > 1:
        lower = max(1, int(high * 0.9))
        low, high = (lower, high) if fits(name, lower) else (0, lower)
    while high - low > max(1, int(low * 0.02)):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(name, middle) else (low, middle)
    return low


def compare(name: str, folder: Path) -> dict[str, Any]:
    task, config, values = CASES[name]
    document = common.settings(task, config, **values)
    began = time.perf_counter()
    code, said = trained(
        folder / "auto",
        document,
        micro_batch="auto",
        batch_size=1 << 14,
        max_steps=2,
        fit_head_room=HEAD_ROOM,
    )
    told = re.search(r"(\d+) samples at a time fit.*?\(tried (.*?)\)", " ".join(said.split()))
    if told is None:
        return {"failed": said[-1500:]}
    seconds = time.perf_counter() - began
    found = int(told[1])
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((free - HEAD_ROOM * total) / total)
    best = brute_force(name, found)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "found": found, "tried": told[2], "brute_force": best, "ratio": round(found / best, 4) if best else None,
        "trained_with_it": code == 0, "seconds": round(seconds, 1), "said": said[-600:],
    }  # fmt: skip


def measure(_tiny: bool, folder: Path) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"left_out": "needs a GPU"}
    os.environ["FINDER_FOLDER"] = str(folder)
    other = subprocess.Popen(
        [sys.executable, "-c", BALLAST, str(LEFT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        if other.stdout.readline() != "taken\n":
            return {"failed": "the other process could not take the memory"}
        result = {}
        for name in CASES:
            result[name] = compare(name, folder / name.replace(" ", "-"))
            common.keep(result)
        return result
    finally:
        other.stdin.close()
        other.wait(60)


if __name__ == "__main__":
    common.main(__doc__, measure)
