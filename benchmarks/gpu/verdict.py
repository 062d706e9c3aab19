"""Whether a profile's verdict names the cause on a GPU, in trainings whose cause is known.

    python benchmarks/gpu/verdict.py [--tiny] [--json FILE]

Each training is a process of its own: samples from a slow disk, a large table that each step copies to the GPU, many layers
of a few numbers, large checkpoints, a large test set, and large products, of which nothing is to be said. What reads the
profile is the command line's, which needs pydantic: without it, all of this is left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
import torch

TASK = """
import time

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

class Slow(Dataset):
    def __len__(self):
        return 8192

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(512), index % 10

class Dense:
    def model(self, cfg):
        self.table = torch.zeros(cfg.table) if cfg.table else None
        layers = []
        for one, two in zip(cfg.sizes, cfg.sizes[1:]):
            layers += [nn.Linear(one, two), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def dataset(self, cfg, split):
        if split == "test":
            return TensorDataset(torch.randn(cfg.tests, cfg.sizes[0]), torch.arange(cfg.tests) % 10) if cfg.tests else None
        if cfg.slow:
            return Slow()
        return TensorDataset(torch.randn(cfg.samples, cfg.sizes[0]), torch.arange(cfg.samples) % 10)

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=1e-4)

    def loss(self, model, batch):
        if self.table is not None:  # what belongs on the GPU, and is copied there in each step
            batch = [batch[0] + self.table.to(batch[0].device).mean(), batch[1]]
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
USUAL = {"sizes": [512, 2048, 2048, 10], "samples": 4096, "tests": 0, "slow": False, "table": 0}
# The cause that is known of each, what its task has, and its settings.
CASES: dict[str, tuple[str | None, dict[str, Any], dict[str, Any]]] = {
    "slow disk": ("data", {"slow": True}, {"workers": 1}),
    "a table that is copied": ("copying", {"table": 1 << 25}, {}),
    "many small layers": ("small", {"sizes": [512, *[8] * 100, 10]}, {}),
    "saving": (
        "saving",
        {"sizes": [512, *[4096] * 6, 10]},
        {"batch_size": 16, "checkpoint_steps": 2, "keep": 1},
    ),
    "evaluating": ("evaluating", {"samples": 256, "tests": 200_000}, {"epochs": 99}),
    "large products": (None, {"sizes": [4096, *[8192] * 6, 10], "samples": 8192}, {"batch_size": 4096}),
}


def judged(folder: Path, config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "verdict_task.py").write_text(TASK)
    document = {
        "schema": "slurmgpu.train/1", "task": f"{folder / 'verdict_task.py'}:Dense", "profile": True, "profile_steps": 10,
        "max_steps": 50, "batch_size": 32, "epochs": 999, "log_every": 5, "checkpoint_every": 10**6,
        "config": {**USUAL, **config}, **values,
    }  # fmt: skip
    (folder / "train.json").write_text(json.dumps(document))
    environment = {**os.environ, "SLURMGPU_RUN_DIR": str(folder), "PYTHONPATH": str(common.ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "slurmgpu.training"], env=environment, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    from slurmgpu.runs.profiles import judge_run

    return dict(judge_run(folder).verdict)


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    if importlib.util.find_spec("pydantic") is None:
        return {"left_out": "needs pydantic"}
    chosen = {"many small layers": CASES["many small layers"]} if tiny else CASES
    result: dict[str, Any] = {"right": 0, "of": len(chosen)}
    for name, (known, config, values) in chosen.items():
        if tiny:
            config, values = {"sizes": [16, *[8] * 10, 10]}, {**values, "device": "cpu"}
        verdict = judged(folder / name.replace(" ", "-"), config, values)
        if "failed" in verdict:
            result[name] = verdict
            continue
        causes = [each["cause"] for each in verdict["causes"]]
        first = next((each for each in causes if each != "queued"), None)
        result["right"] += first == known
        result[name] = {"known": known, "found": causes, "right": first == known, "verdict": verdict}
        common.keep(result)
    result["on"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    return result


if __name__ == "__main__":
    common.main(__doc__, measure)
