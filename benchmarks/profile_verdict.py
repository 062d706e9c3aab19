"""Whether a profile's verdict names the cause, in trainings whose cause is known, and names none where there is none.

    python benchmarks/profile_verdict.py [--rounds 3] [--only NAME] [--out benchmarks/results/profile_verdict.json]

What the file has already is kept, so that a run that was broken off goes on. All of it runs on CPUs, where no batch is
copied to a GPU: casts and new layouts of whole batches stand for these copies, and operators of a few microseconds stand for
short kernels. Two processes talk over gloo.

Where others use the machine as well, that the training waits for a CPU is true of any of them, as the kernel's scheduler
counts it: this cause is kept apart (``queued``), and the first of the others is the one that has to be right. A training that
waits for more than half of the time tells nothing of the others, as its verdict says, and is made again (``repeated``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from slurmgpu import __version__
from slurmgpu.monitoring.profiles import judge_run

ROOT = Path(__file__).resolve().parents[1]
MOST = 30  # trainings of a case that are made again
STEPS = 10  # timed, and as many recorded


class Dense:
    """Products that keep the CPU busy; the others are made of it."""

    sizes, samples = (512, 2048, 2048, 10), 4096

    def model(self, cfg: Any) -> nn.Module:
        layers: list[nn.Module] = []
        for one, two in zip(self.sizes, self.sizes[1:], strict=False):
            layers += [nn.Linear(one, two), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        if split == "test":
            return None
        return TensorDataset(torch.randn(self.samples, self.sizes[0]), torch.arange(self.samples) % 10)

    def optimizer(self, model: nn.Module, cfg: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-4)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss


class Convolutions(Dense):
    def model(self, cfg: Any) -> nn.Module:
        def block(one: int, two: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(one, two, 3, padding=1), nn.BatchNorm2d(two), nn.ReLU(), nn.MaxPool2d(2)
            )

        return nn.Sequential(block(3, 32), block(32, 64), nn.Flatten(), nn.Linear(64 * 64, 10))

    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        if split == "test":
            return None
        return TensorDataset(torch.randn(512, 3, 32, 32), torch.arange(512) % 10)


class Items(Dataset[Any]):
    """Samples one by one, each from a slow disk or packed."""

    def __init__(self, kind: str, seconds: float) -> None:
        self.kind, self.seconds = kind, seconds
        noise = torch.randint(0, 4, (200_000,), dtype=torch.uint8).numpy()
        self.packed = zlib.compress(noise.tobytes())

    def __len__(self) -> int:
        return 8192

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.kind == "disk":
            time.sleep(self.seconds)
        elif self.kind == "packed":
            zlib.decompress(self.packed)
        elif int(os.environ.get("SLURM_PROCID", "0")) == 1:
            time.sleep(self.seconds)
        return torch.zeros(512), index % 10


class FromDisk(Dense):
    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        return None if split == "test" else Items("disk", 0.002)


class Packed(Dense):
    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        return None if split == "test" else Items("packed", 0)


class OneSlowRank(Dense):
    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        return None if split == "test" else Items("rank 1", 0.003)


class Casting(Dense):
    """Each batch is cast and laid out anew, twice."""

    def model(self, cfg: Any) -> nn.Module:
        return nn.Linear(64, 10)

    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        if split == "test":
            return None
        return TensorDataset(torch.zeros(2048, 64, 64, 3, dtype=torch.uint8), torch.arange(2048) % 10)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x = batch[0].double().permute(0, 3, 1, 2).contiguous().float()
        loss: torch.Tensor = nn.functional.cross_entropy(model(x[:, 0, 0]), batch[1])
        return loss


class Narrow(Dense):
    """A hundred layers, each of a few numbers."""

    sizes = (512, *[8] * 100, 10)


class Wide(Dense):
    """Many parameters, few samples: gradients and checkpoints are large, and a step is short."""

    sizes = (512, 2048, 2048, 2048, 10)


class Tested(Dense):
    """A large test set after each short epoch."""

    samples = 64

    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        if split == "train":
            return super().dataset(cfg, split)
        return TensorDataset(torch.randn(2048, 512), torch.arange(2048) % 10)


class Case(NamedTuple):
    """A training, and the cause that is known of it; None where there is none."""

    task: type[Dense]
    cause: str | None
    settings: dict[str, Any]
    ranks: int = 1
    crowd: int = 0
    """Processes that keep the training's only CPU busy."""


CASES = {
    "loader: slow disk": Case(FromDisk, "data", {}),
    "loader: unpacking": Case(Packed, "data", {}),
    "loader: slow disk, one worker": Case(FromDisk, "data", {"workers": 1}),
    "copies": Case(Casting, "copying", {"batch_size": 128}),
    "small operators": Case(Narrow, "small", {}),
    "communication": Case(Wide, "communicating", {"batch_size": 4}, 2),
    "one slow rank": Case(OneSlowRank, "waiting", {}, 2),
    "CPUs that others use": Case(Dense, "queued", {"batch_size": 64}, crowd=2),
    "saving": Case(Wide, "saving", {"batch_size": 16, "checkpoint_steps": 2, "keep": 1}),
    "evaluating": Case(Tested, "evaluating", {"batch_size": 32, "epochs": 99}),
    "healthy: dense": Case(Dense, None, {"batch_size": 256}),
    "healthy: convolutions": Case(Convolutions, None, {"batch_size": 64}),
    "healthy: loader with a worker": Case(Packed, None, {"batch_size": 128, "workers": 1}),
    "healthy: two processes": Case(Dense, None, {"batch_size": 1024, "accumulate": 4}, 2),
    "healthy: checkpoints now and then": Case(Dense, None, {"batch_size": 256, "checkpoint_steps": 25}),
}


def _on_one_cpu(case: Case) -> list[str]:
    return ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))] if case.crowd else []


def _train(case: Case, run_dir: Path) -> None:
    document = {
        "schema": "slurmgpu.train/1", "task": f"{Path(__file__).resolve()}:{case.task.__name__}", "profile": True,
        "profile_steps": STEPS, "device": "cpu", "max_steps": 50, "batch_size": 32, "epochs": 999, "log_every": 5,
        **case.settings,
    }  # fmt: skip
    (run_dir / "train.json").write_text(json.dumps(document))
    port = random.SystemRandom().randrange(20_000, 30_000)
    known = {
        **os.environ, "SLURMGPU_RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SLURM_NTASKS": str(case.ranks),
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [*_on_one_cpu(case), sys.executable, "-m", "slurmgpu.training"],
            env={**known, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(case.ranks)
    ]  # fmt: skip
    crowd = [
        subprocess.Popen([*_on_one_cpu(case), sys.executable, "-c", "while True: pass"])
        for _ in range(case.crowd)
    ]
    said = [process.communicate(timeout=600)[0] for process in started]
    for process in crowd:
        process.kill()
        process.wait()
    if any(process.returncode for process in started):
        raise SystemExit(f"{case.task.__name__} failed:\n" + "\n".join(said))


def judged(case: Case) -> dict[str, Any]:
    """Train and judge once."""
    with tempfile.TemporaryDirectory(prefix="profile-verdict-") as folder:
        _train(case, Path(folder))
        verdict = judge_run(Path(folder)).verdict
    causes = [each["cause"] for each in verdict["causes"] if each["cause"] != "queued" or case.crowd]
    found = causes[0] if causes else None
    return {
        "found": found,
        "right": found == case.cause,
        "also": causes[1:],
        "queued": any(each["cause"] == "queued" for each in verdict["causes"]),
        "step_seconds": round(verdict["step_seconds"], 6),
        "recording_seconds": round(verdict["recording_seconds"], 6),
        "shares": {name: round(share, 4) for name, share in verdict["shares"].items() if share >= 0.005},
        "of_training": {name: round(share, 4) for name, share in verdict["of_training"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if not given.only or given.only in name}
    found = json.loads(given.out.read_text())["cases"] if given.out and given.out.exists() else {}
    for name, case in chosen.items():
        if len(found.get(name, {"rounds": ()})["rounds"]) < given.rounds:
            found[name] = _rounds(case, given.rounds)
        print(f"{name}: known {case.cause}, right {found[name]['right']} of {given.rounds}", flush=True)
        for each in found[name]["rounds"]:
            print(
                f"    {each['found']}, also {each['also']}, queued {each['queued']}, {each['shares']} {each['of_training']}",
                flush=True,
            )
        if given.out:
            given.out.write_text(json.dumps(_document(found), indent=1) + "\n")
    print(f"right {_document(found)['right']} of {_document(found)['of']}")


def _rounds(case: Case, count: int) -> dict[str, Any]:
    """A case as often as it is wanted."""
    rounds, repeated = [], 0
    while len(rounds) < count:
        one = judged(case)
        if one["shares"].get("queued", 0) > 0.5 and not case.crowd and repeated < MOST:
            repeated += 1
            continue
        rounds.append(one)
    return {
        "known": case.cause,
        "right": sum(each["right"] for each in rounds),
        "repeated": repeated,
        "load": round(os.getloadavg()[0], 1),
        "rounds": rounds,
    }


def _document(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "slurmgpu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, no GPU",
        "nice": os.nice(0),
        "steps": STEPS,
        "right": sum(each["right"] for each in found.values()),
        "queued": sum(each["queued"] for one in found.values() for each in one["rounds"]),
        "of": sum(len(one["rounds"]) for one in found.values()),
        "cases": found,
    }


if __name__ == "__main__":
    main()
