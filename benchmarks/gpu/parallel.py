"""Copies ahead, DataParallel and nccl: what must compute the same as one plain process.

    python benchmarks/gpu/parallel.py [--tiny] [--json FILE]

The next batch is copied on a stream of its own: the losses must be those without it, to the last bit, also where the
copies take longer than the steps. ``dp`` uses all GPUs. The calls of a process group (nccl on a GPU, else gloo) are
gone through with one rank; with two GPUs or more, two ranks train, started by torchrun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import torch
import torch.distributed as dist

TOLERANCE = 2e-4  # relative, of the last loss: sums in another order
TOLERANCE_HALF = 2e-2


def train(folder: Path, task: str, config: dict[str, Any], **values: Any) -> dict[int, str]:
    common.train_here(common.settings(task, config, log_every=1, **values), folder)
    return common.losses(folder)


def copies_ahead(tiny: bool, folder: Path) -> dict[str, Any]:
    """The same losses with and without the stream that copies ahead."""
    from slurmgpu.training import data
    from slurmgpu.training.batches import to_device

    config = {"width": 64, "layers": 1, "samples": 64}
    if not tiny:
        config = {"width": 4096, "layers": 16, "samples": 8192}
    values = {
        "batch_size": 16 if tiny else 1024,
        "max_steps": 6 if tiny else 200,
        "deterministic": True,
        "lr": 1e-5,
    }
    ahead = train(folder / "ahead", "Vectors", config, **values)
    used = data._Ahead

    def one_by_one(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
        for batch in batches:
            moved = to_device(batch, device)
            common.finish()
            yield moved

    data._Ahead = one_by_one  # type: ignore[assignment, misc]
    try:
        plain = train(folder / "one-by-one", "Vectors", config, **values)
    finally:
        data._Ahead = used  # type: ignore[misc]
        torch.use_deterministic_algorithms(False)
    return {"steps": len(plain), "equal": ahead == plain, "stream": torch.cuda.is_available()}


def close(one: dict[int, str], other: dict[int, str], tolerance: float) -> dict[str, Any]:
    last = max(one)
    pair = float.fromhex(one[last]), float.fromhex(other[last])
    return {
        "steps": len(one),
        "losses": pair,
        "tolerance": tolerance,
        "close": one.keys() == other.keys() and abs(pair[0] - pair[1]) <= tolerance * abs(pair[0]),
    }


def sizes(tiny: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    config = {**(common.TINY if tiny else common.SMALL), "samples": 64}
    return config, {"batch_size": 16, "max_steps": 4 if tiny else 30, "tf32": False}


def data_parallel(tiny: bool, folder: Path) -> dict[str, Any]:
    config, values = sizes(tiny)
    result: dict[str, Any] = {"gpus": torch.cuda.device_count()}
    for precision in ("fp32", "bf16"):
        runs = [
            train(
                folder / f"{strategy}-{precision}",
                "Tokens",
                config,
                strategy=strategy,
                precision=precision,
                **values,
            )
            for strategy in ("single", "dp")
        ]
        result[precision] = close(*runs, TOLERANCE if precision == "fp32" else TOLERANCE_HALF)
    return result


def group_of_one() -> dict[str, Any]:
    """What the ranks tell each other, through a process group of one: gather, sum, barrier, buffers."""
    from slurmgpu.training.processes.group import Group
    from slurmgpu.training.processes.ranks import Ranks

    class Alone(Group):
        together = True  # type: ignore[assignment]

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    group = Alone(Ranks(), common.device())
    gathered = group.gather({"a": [1, "b"]})
    total = group.sum(torch.ones(2, dtype=torch.float64, device=group.device)).tolist()
    group.share_buffers(torch.nn.BatchNorm1d(3).to(group.device))
    group.barrier()
    dist.destroy_process_group()
    return {"backend": backend, "right": gathered == [{"a": [1, "b"]}] and total == [1.0, 1.0]}


def two_ranks(tiny: bool, folder: Path) -> dict[str, Any]:
    if torch.cuda.device_count() < 2:
        return {"left_out": "needs 2 GPUs: nccl refuses two ranks on one"}
    config, values = sizes(tiny)
    runs = folder / "one", folder / "two"
    document = common.settings("Tokens", config, log_every=1, **values)
    common.train_here(document, runs[0])
    runs[1].mkdir()
    (runs[1] / "train.json").write_text(json.dumps(document))
    environment = {**os.environ, "SLURMGPU_RUN_DIR": str(runs[1]), "PYTHONPATH": str(common.ROOT)}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*launch, "--module", "slurmgpu.training"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if ended.returncode:
        return {"failed": ended.stderr[-2000:]}
    return close(common.losses(runs[0]), common.losses(runs[1]), TOLERANCE)


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    return {
        "copies_ahead": copies_ahead(tiny, folder / "copies"),
        "data_parallel": data_parallel(tiny, folder / "dp"),
        "group_of_one": group_of_one(),
        "two_ranks": two_ranks(tiny, folder / "ddp"),
    }


if __name__ == "__main__":
    common.main(__doc__, measure)
