"""What two edges of the training loop cost: an average of the weights under DDP, and checkpoints of short epochs.

    python benchmarks/loop_edges.py [--rounds N] [--seconds S] [--json FILE]

Two processes train one model by DDP over gloo in three ways: without an average of its weights, with one as ``ema`` keeps it,
and with one in the model's buffers, which DDP sends before each forward pass. The ways take turns in the same processes, so
that a machine that others use too disturbs all alike; what is compared are the medians of a step. Then the entrypoint trains
a model of 500 MB in epochs of 64 short steps, each of which wants a checkpoint, and the share of its time that these take is
held against ``checkpoint_share`` (and a second that is free); the last checkpoint, at the end, is not in it. At last, what a
checkpoint costs a training of 42 million parameters with AdamW, which is 500 MB, on one CPU with another one free: the time
of the steps from its beginning to its commit, beyond as many usual ones (the median of the steps far from a save).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.training.averaged import Average  # noqa: E402
from slurmgpu.training.processes.group import Group  # noqa: E402
from slurmgpu.training.processes.ranks import Ranks  # noqa: E402
from slurmgpu.training.run import train  # noqa: E402
from slurmgpu.training.settings import parse  # noqa: E402

WIDTH, LAYERS, BATCH, DECAY = 1024, 8, 16, 0.999
TURN = 3  # steps of one way before the next one's turn
SHARE = 0.05

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Heavy:
    def model(self, cfg):
        model = nn.Linear(64, 10)
        model.register_buffer("weight_of_a_large_model", torch.zeros(125_000_000))
        return model

    def dataset(self, cfg, split):
        return TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,))) if split == "train" else None

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


LONG_STEPS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Long:
    def model(self, cfg):
        return nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(2048, 2048), nn.ReLU())))

    def dataset(self, cfg, split):
        return TensorDataset(torch.randn(2048, 2048)) if split == "train" else None

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=1e-5)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()
"""


class InBuffers(nn.Module):
    """A model that keeps the average of its weights in its buffers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.averages = []
        for number, each in enumerate(model.parameters()):
            self.register_buffer(f"average_{number}", each.detach().clone())
            self.averages.append(self.get_buffer(f"average_{number}"))

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages on."""
        torch._foreach_lerp_(self.averages, [each.detach() for each in self.model.parameters()], 1 - DECAY)


def _model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def _rank(rank: int, port: int, rounds: int, target: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    plain, averaged, buffered = _model(), _model(), InBuffers(_model())
    average = Average(averaged, DECAY)
    ways = [
        ("none", plain, lambda: None),
        ("ema", averaged, average.update),
        ("buffers", buffered, buffered.update),
    ]
    wrapped = {name: DistributedDataParallel(each) for name, each, _ in ways}
    optimizers = {name: torch.optim.SGD(each.parameters(), lr=1e-3) for name, each, _ in ways}
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    batch = torch.randn(BATCH, WIDTH)
    for number in range(rounds + 1):
        for name, _, update in ways:
            for _ in range(TURN):
                dist.barrier()
                began = time.perf_counter()
                wrapped[name](batch).square().mean().backward()
                optimizers[name].step()
                optimizers[name].zero_grad()
                update()
                if number:  # in the first round DDP makes its buckets
                    seconds[name].append(time.perf_counter() - began)
    if rank == 0:
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        Path(target).write_text(json.dumps(medians))
    dist.destroy_process_group()


def averages(rounds: int) -> dict[str, float]:
    """Milliseconds of a step in each way, and by how much it is slower than without an average."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        target = str(Path(folder, "medians.json"))
        mp.spawn(_rank, args=(port, rounds, target), nprocs=2)
        medians = json.loads(Path(target).read_text())
    found = {f"{name}_ms": round(1000 * each, 2) for name, each in medians.items()}
    return {
        **found,
        "ema_to_none": round(medians["ema"] / medians["none"], 3),
        "buffers_to_none": round(medians["buffers"] / medians["none"], 3),
    }


def checkpoints(seconds: float) -> dict[str, float]:
    """How long a training of short epochs took, how much of it went into checkpoints, and how many it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "task.py").write_text(TASK)
        run = Path(folder, "run")
        run.mkdir()
        settings = {
            "schema": "slurmgpu.train/1", "task": f"{folder}/task.py:Heavy", "batch_size": 32, "max_steps": 10**6,
            "log_every": 64, "checkpoint_share": SHARE, "keep": 1, "sanity": False,
        }  # fmt: skip
        began = time.time()
        environment = {"SLURMGPU_END_TIME": str(int(began + seconds))}
        try:
            train(parse(settings), run, Group(Ranks(), torch.device("cpu")), environment)
        except Exception as stopped:  # the end of its time is what it is to find
            print(f"ended: {type(stopped).__name__}", file=sys.stderr)
        took = time.time() - began
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    ends = [0, *(line["step"] for line in trained)]
    taken = [end - begin for begin, end in itertools.pairwise(ends)]
    still, steps_took = (
        sum(line["values"][name] * steps for line, steps in zip(trained, taken, strict=True))
        for name in ("checkpoint_seconds", "step_seconds")
    )
    return {
        "seconds": round(took, 1),
        "steps": ends[-1],
        "epochs": ends[-1] // 64,
        "checkpoints": sum(line["kind"] == "checkpoint" for line in lines),
        "saving_seconds": round(still, 2),
        "saving_share": round(still / steps_took, 4),
        "share_set": SHARE,
        # A second in all is free, so that short trainings are saved as often as asked.
        "at_most_seconds": round(1.0 + SHARE * steps_took, 2),
    }


def stall() -> dict[str, Any]:
    """What saves of 500 MB cost the steps beside them, in steps."""
    every, saves = 16, 4
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "long_task.py").write_text(LONG_STEPS)
        run = Path(folder, "run")
        run.mkdir()
        settings = {
            "schema": "slurmgpu.train/1", "task": f"{folder}/long_task.py:Long", "batch_size": 128, "log_every": 1, "keep": 1,
            "max_steps": every * (saves + 1), "keep_every": every, "checkpoint_steps": 10**6, "checkpoint_every": 10**6,
            "checkpoint_share": None, "sanity": False,
        }  # fmt: skip
        torch.set_num_threads(1)
        train(parse(settings), run, Group(Ranks(), torch.device("cpu")), {})
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["values"] for line in lines if line["kind"] == "train"}
    whole = {line["step"]: line["values"] for line in lines if line["kind"] == "checkpoint"}
    far = [each["step_seconds"] for step, each in steps.items() if step % every > every // 2]
    usual, found = statistics.median(far), []
    for step in sorted(whole)[:saves]:
        left, around = whole[step]["seconds"], []
        for number in range(step + 1, step + every):
            around.append(steps[number]["step_seconds"])
            left -= around[-1]
            if left <= 0:
                break
        found.append(
            {
                "step": step,
                "bytes": whole[step]["bytes"],
                "seconds": round(whole[step]["seconds"], 3),
                "stands_still_seconds": round(steps[step + 1]["checkpoint_seconds"], 3),
                "steps_meanwhile": len(around),
                "stall_steps": round((sum(around) - usual * len(around)) / usual, 2),
            }
        )
    return {"usual_step_seconds": round(usual, 4), "saves": found}


def main() -> None:
    """Measure, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=40.0, help="of the training with checkpoints")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = {"average": averages(given.rounds), "checkpoints": checkpoints(given.seconds), "stall": stall()}
    about = {"torch": torch.__version__, "python": platform.python_version(), "cpus": os.cpu_count()}
    text = json.dumps({"about": about, "results": results}, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
