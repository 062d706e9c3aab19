"""What `slurmgpu bench task` says of five trainings whose answer is known, and whether the job file that follows runs.

    python benchmarks/bench_verdicts.py [--seconds S] [--only NAME ...] [--out FILE]

Each is made so that one thing limits it: its loader, the cost of a step of a tiny network, the exchange of gradients of a huge
layer, memory (a limit is set), or nothing. The command is the user's own, on this machine's CPU; whoever else uses the machine
disturbs the last. What is proposed is written into the job file (--apply), and that job then trains for some steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import slurmgpu
from slurmgpu.monitoring.benching.verdict import EFFICIENT

ROOT = Path(__file__).resolve().parent.parent
MEMORY = 2 << 30
"""Bytes of data that a process of the training without memory may have."""

TASKS = '''
import time

import torch
from torch import nn
from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, width, wait=0.0):
        self.width, self.wait = width, wait

    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        if self.wait:
            time.sleep(self.wait)
        return torch.full((self.width,), index % 7 / 7), torch.tensor(index % 10)


class Task:
    width, wait = 64, 0.0

    def model(self, cfg):
        return nn.Sequential(nn.Linear(self.width, 64), nn.ReLU(), nn.Linear(64, 10))

    def dataset(self, cfg, split):
        return Rows(self.width, self.wait) if split == "train" else None

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)


class SlowToLoad(Task):
    wait = 0.004


class Tiny(Task):
    pass


class Wide(nn.Module):
    """A layer of 64 million weights, for a few samples."""

    def __init__(self):
        super().__init__()
        self.wide, self.last = nn.Linear(8000, 8000), nn.Linear(8000, 10)

    def forward(self, x):
        return self.last(self.wide(x))


class MuchToSend(Task):
    width = 8000

    def model(self, cfg):
        return Wide()


class Large(nn.Module):
    """Keeps tens of MiB for each sample until the backward pass; each step costs something, whatever its size."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x):
        time.sleep(0.3)
        kept = (x.repeat(1, 1 << 16) * self.factor).exp()
        return self.last(x) + kept.mean()


class MuchToKeep(Task):
    def model(self, cfg):
        return Large()


class MuchToCompute(Task):
    def model(self, cfg):
        middle = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
        return nn.Sequential(nn.Linear(self.width, 512), *middle, nn.Linear(512, 10))
'''


class Said(NamedTuple):
    """The sentences together, and what is proposed."""

    text: str
    proposed: dict[str, Any]


class Case(NamedTuple):
    """A training, how it is measured, and what has to be said of it."""

    task: str
    batch: int
    parts: tuple[str, ...]
    right: Callable[[Said], bool]
    processes: str = "1"
    memory: int | None = None


def _gain(said: str) -> float:
    found = re.search(r"samples at a time are ([\d.]+) times as fast", said)
    return float(found[1]) if found else 1.0


def _of_two(said: str) -> float:
    """What two processes reach of what they could, as a share: on CPUs the figure is told, and no number of GPUs follows."""
    found = re.search(r"2 processes do [\d.]+ times as much as one \((\d+) %", said)
    return int(found[1]) / 100 if found else math.nan


CASES = {
    "loader": Case("SlowToLoad", 16, ("workers",), lambda found: found.proposed.get("train.workers", 0) >= 1),
    "tiny network": Case("Tiny", 4, ("batch",), lambda found: _gain(found.text) > 2),
    "communication": Case(
        "MuchToSend", 4, ("scaling",), lambda found: _of_two(found.text) < EFFICIENT, "1,2"
    ),
    "memory": Case(
        "MuchToKeep", 4, ("batch",), lambda found: "memory is full with" in found.text, "1", MEMORY
    ),
    "scales well": Case(
        "MuchToCompute", 512, ("scaling",), lambda found: _of_two(found.text) >= EFFICIENT, "1,2"
    ),
}


def measured(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """What the command says, and how the job ends that follows from it."""
    (folder / "task.py").write_text(TASKS)
    (folder / "job.yaml").write_text(
        "resources: {gpus: 2}\n"
        f"train: {{task: 'task.py:{case.task}', batch_size: {case.batch}, workers: 0, device: cpu}}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "slurmgpu"]
    parts = [word for part in case.parts for word in ("--part", part)]
    options = ["--processes", case.processes, "--seconds", str(seconds), "--here", "--apply", "--json"]

    def limited() -> None:
        if case.memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (case.memory, case.memory))

    began = time.monotonic()
    done = subprocess.run(
        [*command, "bench", "task", "job.yaml", *parts, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )
    took = time.monotonic() - began
    document = (
        json.loads(done.stdout) if done.stdout else {"sentences": [done.stderr[-500:]], "proposals": []}
    )
    proposed = {one["key"]: one["value"] for one in document["proposals"]}
    run = [*command, "run", "job.yaml", "--here", "--steps", "5"]
    trained = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True)
    said = "; ".join(document["sentences"])
    return {
        "right": case.right(Said(said, proposed)),
        "sentences": document["sentences"],
        "proposals": proposed,
        "job_that_follows_runs": trained.returncode == 0,
        "seconds": round(took, 1),
    }


def main() -> None:
    """Measure, print, and keep the results when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = {}
    for name in given.only or CASES:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measured(CASES[name], Path(folder), given.seconds)
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    right = sum(one["right"] and one["job_that_follows_runs"] for one in results.values())
    print(f"{right} of {len(results)} right")
    if given.out:
        document = {
            "schema": "slurmgpu.benchmark/1",
            "benchmark": "bench_verdicts",
            "machine": {
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": {"torch": torch.__version__, "slurmgpu": slurmgpu.__version__},
            "setting": {"seconds": given.seconds},
            "results": {"right": right, "of": len(results), "cases": results},
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
