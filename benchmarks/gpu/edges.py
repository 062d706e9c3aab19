"""What a job meets at its edges on a GPU: GPUs that are missing, a criterion of its own, data that lie there, no memory.

    python benchmarks/gpu/edges.py [--tiny] [--json FILE]

Each is a training in a process of its own, started by ``python -m slurmgpu.training``, and held to its exit code and to
what it says. On the CPU the data lie there, and the error of a full GPU is raised by the task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
import torch

TASK = """
import os

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

class Kept(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]

class Edge:
    def model(self, cfg):
        return nn.Linear(8, 3)

    def dataset(self, cfg, split):
        if split != "train":
            return None
        made = torch.Generator().manual_seed(0)
        x, y = torch.randn(64, 8, generator=made), torch.randint(3, (64,), generator=made)
        weight = torch.tensor([1.0, 2.0, 3.0])
        self.criterion = nn.CrossEntropyLoss(weight=weight)
        data = {"cpu": TensorDataset, "tensors": TensorDataset, "own": Kept}[cfg.data]
        return data(x, y) if cfg.data == "cpu" else data(x.to(DEVICE), y.to(DEVICE))

    def loss(self, model, batch):
        if os.environ.get("EDGE_FULL") == "1":
            if DEVICE == "cpu":
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            torch.empty(2**45, dtype=torch.uint8, device=DEVICE)
        return self.criterion(model(batch[0]), batch[1])
"""


def start(folder: Path, data: str = "cpu", workers: Any = "auto", **environment: str) -> tuple[int, str]:
    """Train in a new folder; the exit code and all that was said."""
    folder.mkdir(parents=True)
    (folder / "edge_task.py").write_text(TASK)
    document = common.settings("Edge", {"data": data}, batch_size=16, max_steps=4, workers=workers)
    document["task"] = f"{folder / 'edge_task.py'}:Edge"
    (folder / "train.json").write_text(json.dumps(document))
    base = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    own = {"SLURMGPU_RUN_DIR": str(folder), "PYTHONPATH": str(common.ROOT)}
    command = [sys.executable, "-m", "slurmgpu.training"]
    done = subprocess.run(
        command, env={**base, **own, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    seen = torch.cuda.device_count() if on_gpu else 0
    shown = ",".join(map(str, range(seen + 1)))
    given = {"SLURM_GPUS_ON_NODE": str(seen + 1), "CUDA_VISIBLE_DEVICES": shown, "SLURM_JOB_ID": "1"}
    sees = f"torch sees {seen or 'none'}"
    full = start(folder / "full", EDGE_FULL="1")
    result: dict[str, Any] = {"on_gpu": on_gpu, "out_of_memory_said": full[1][-2000:]}
    missing = start(folder / "missing", **given)
    # Each is a process that imports torch: tiny, no more of them than show that this benchmark still runs.
    kept = {name: start(folder / name, data=name) for name in ("tensors", "own")[: 1 if tiny else None]}
    right = {
        "too few GPUs end it": missing[0] == 1 and sees in missing[1] and torch.__version__ in missing[1],
        "data that lie on the device train": all(code == 0 for code, _ in kept.values()),
        "a full GPU is met with advice": full[0] == 1 and "accumulate: 2" in full[1],
    }
    if not tiny:
        hidden = start(folder / "hidden", **{**given, "CUDA_VISIBLE_DEVICES": ""})
        right["hidden GPUs are noted"] = hidden[0] == 0 and "hides this node's GPUs" in hidden[1]
        right["a criterion's weights come along"] = start(folder / "criterion")[0] == 0
    if on_gpu:
        right["the advice has the GPU's figures"] = "GiB, of which this process had" in full[1]
        code, said = start(folder / "workers", data="own", workers=2)
        right["workers for data on the GPU are refused"] = code == 2 and "workers: 0" in said
    else:
        result["left_out"] = "workers for data on the GPU, the figures of its memory: need a GPU"
    wrong = [name for name, holds in right.items() if not holds]
    if wrong:
        raise SystemExit(f"not so: {', '.join(wrong)}\n{missing[1]}\n{kept}\n{full[1]}")
    return {**result, "right": sorted(right)}


if __name__ == "__main__":
    common.main(__doc__, measure)
