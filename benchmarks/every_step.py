"""Kills trainings that keep every step on their nodes, and measures what keeping them costs.

    python benchmarks/every_step.py [--kills N] [--sharded-kills N] [--rounds N] [--seed N] [--json FILE]

Trainings with ``checkpoint_steps: 1`` and ``checkpoint_shared_steps: 25``, of one and of two processes, are ended by SIGKILL to
one process or to all of them, at a random moment from their start on, and started again: in a fifth of them the two processes
are on two nodes (folders of their own), and after a kill one of these is lost with all that was kept there. A step is completed
when a process has begun the next one, or when its line is in metrics.jsonl: whichever is later is held against the step from
which the following start goes on. At the end losses in hex, weights, optimizer and random states are those of an undisturbed run.
The same of sharded models (fsdp2, also with a node that is lost, and pipelines of two stages) is counted apart.
Only kills of a start that had begun to train are counted; the others hit it while it looked for its state, or made a checkpoint
of what was kept.

The cost: a step without checkpoints, with every step kept on the node, and with every step saved in the run directory, on a
local disk here. The three take turns, each a training of its own; what is compared are the median and the least of the means of
10 steps: on a machine that others use too, the least is the one that they disturb least.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # with the first step of an optimizer, each process would import it by itself

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import soak  # noqa: E402
from benchmarks.soak import Fault, Report, Run, Setup  # noqa: E402
from slurmgpu.training import run as _loaded_before_the_fork  # noqa: E402, F401

SHARED = 25
soak.PATIENCE = 900.0  # on a machine that others use, too
SETUPS = (
    Setup(1, 0, 1),
    Setup(2, 0, 1),
    Setup(1, 0, 1, kind="judged"),
    Setup(2, 0, 1, kind="averaged"),
    Setup(2, 0, 1, kind="on two nodes"),
)
SHARDED = (
    Setup(2, 0, 1, strategy="fsdp2"),
    Setup(2, 0, 1, kind="on two nodes", strategy="fsdp2"),
    Setup(2, 0, 1, strategy="pipeline"),
)
WIDTHS = (32, 512)
STEPS, LOG_EVERY = 80, 10
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "on_the_node": {"checkpoint_steps": 1, "checkpoint_shared_steps": 100},
    "in_the_run_directory": {"checkpoint_steps": 1},
}

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Small:
    def model(self, cfg):
        widths = (64, cfg.width, cfg.width, 10)
        return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(widths, widths[1:])))

    def dataset(self, cfg, split):
        return TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,))) if split == "train" else None

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


class Kept(Run):
    """A training that keeps every step on its nodes."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.delay: float | None = None
        self.apart = setup.kind == "on two nodes"
        super().__init__(folder, setup._replace(kind="plain") if self.apart else setup)
        more: dict[str, Any] = {"checkpoint_steps": 1, "checkpoint_shared_steps": SHARED, "timeout": 600.0}
        if self.apart:
            more["checkpoint_node_folder"] = "$SOAK_NODE"
        file = folder / "train.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
        for rank in range(setup.processes):
            self.node(rank).mkdir()

    def node(self, rank: int) -> Path:
        """The node of a rank, where each has its own."""
        return self.folder / f"node-{rank}"

    def _environment(self, rank: int, port: int, pause: float) -> dict[str, str]:
        found = super()._environment(rank, port, pause)
        if self.apart:
            node = {
                "SLURMD_NODENAME": f"node-{rank}",
                "SLURM_NODEID": str(rank),
                "SOAK_NODE": str(self.node(rank)),
            }
            found |= {**node, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
        return found

    def kill(self, target: str, dice: random.Random, longest: float, pause: float) -> list[int]:
        """Start, and kill one process or all: most at a random moment of the first second of training, some at any."""
        self.delay = dice.uniform(0.0, 1.0) if dice.random() < 0.9 else None
        when = dice.uniform(0.0, longest) if self.delay is None else 0.0
        return self.start(Fault("SIGKILL", target, when), pause)

    def _disturb(self, launcher: int, codes: Path, fault: Fault) -> None:
        last = (
            self.setup.processes - 1 if self.setup.strategy == "pipeline" else 0
        )  # the one that has the losses
        trace, until = self.folder / f"trace-{self.starts}-{last}", time.monotonic() + soak.PATIENCE
        while self.delay is not None and not codes.exists() and time.monotonic() < until:
            if trace.exists() and trace.stat().st_size:
                time.sleep(self.delay)
                break
            time.sleep(0.002)
        super()._disturb(launcher, codes, fault)

    def lose(self, rank: int) -> None:
        """A node is gone, and another one has its place."""
        shutil.rmtree(self.node(rank))
        self.node(rank).mkdir()

    def completed(self, number: int) -> int:
        """The last step that a start had completed."""
        first, each = self.beginnings()[number], self.setup.accumulate
        begun = max(-(-len(rows) // each) for rows in self.trace(number))
        told = [line["step"] for line in self.metrics("train") if line["restart"] == number]
        return max([first, first + begun - 1, *told])


@dataclass
class Found:
    """What the kills did."""

    kills: Counter[str] = field(default_factory=Counter)
    before: int = 0
    starts: int = 0
    runs: int = 0
    lost: list[int] = field(default_factory=list)
    lost_with_node: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Count what others did, too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def kill(setup: Setup, folder: Path, kills: int, seed: int, pause: float) -> Found:
    """Runs of one setup until so many kills have hit one that trained, each held against the undisturbed one."""
    dice, found = random.Random(seed), Found()
    undisturbed = Kept(folder / "undisturbed", setup)
    began = time.monotonic()
    codes = undisturbed.start(Fault(""), pause)
    longest = 1.1 * (time.monotonic() - began)
    if set(codes) != {0}:
        raise SystemExit(f"{setup}: the undisturbed run ended with {codes}: {undisturbed.log()}")
    expected, report, done = soak._outcome(undisturbed), Report(), 0
    while done < kills:
        run = Kept(folder / f"run-{found.runs}", setup)
        found.runs += 1
        faults: dict[int, str] = {}
        while True:
            target = dice.choice([str(dice.randrange(setup.processes)), "all"])
            codes = run.kill(target, dice, longest, pause) if done < kills else run.start(Fault(""), pause)
            found.starts += 1
            if set(codes) == {0}:
                break
            number = run.starts - 1
            where = "all processes" if target == "all" or setup.processes == 1 else "one process of two"
            if number in run.beginnings():
                done += 1
                faults[number] = where
                if run.apart and dice.random() < 0.5:
                    run.lose(dice.randrange(2))
                    faults[number] = f"{where}, and one node of two lost"
                found.kills[faults[number]] += 1
                print(f"{setup}: {done} of {kills} kills", flush=True)
            else:
                found.before += 1
            if run.starts > 60 or not set(codes) <= {-9, 1}:
                found.failures.append(f"{run.folder} ({setup}): ends with {codes}: {run.log()[-1500:]}")
                return found
        beginnings = sorted(run.beginnings().items())
        for (number, _), (_, resumed) in itertools.pairwise(beginnings):
            lost = max(0, run.completed(number) - resumed)
            (found.lost_with_node if "node" in faults[number] else found.lost).append(lost)
            if lost:
                found.failures.append(f"{run.folder} ({setup}), start {number}: {lost} completed steps lost")
        soak._judge_outcome(run, expected, report)
    found.failures += report.failures
    return found


def cost(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a step in each way (means of ``LOG_EVERY`` steps), by processes and size of the model."""
    (folder / "small_task.py").write_text(TASK)
    found = []
    for processes, width in itertools.product((1, 2), WIDTHS):
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        size = 0
        for turn in range(rounds):
            ways = list(WAYS)
            for way in ways[turn % 3 :] + ways[: turn % 3]:
                run = Run(folder / f"{processes}-{width}-{turn}-{way}", Setup(processes, 0, 1))
                settings = {
                    "schema": "slurmgpu.train/1", "task": f"{folder}/small_task.py:Small", "batch_size": 32, "max_steps": STEPS,
                    "log_every": LOG_EVERY, "checkpoint_share": None, "checkpoint_every": 10**6, "sanity": False, "workers": 0,
                    "config": {"width": width}, **WAYS[way],
                }  # fmt: skip
                (run.folder / "train.json").write_text(json.dumps(settings))
                codes = run.start(Fault(""), 0.0)
                if set(codes) != {0}:
                    raise SystemExit(f"{run.folder} ended with {codes}: {run.log()}")
                seconds[way] += [line["values"]["step_seconds"] for line in run.metrics("train")[1:]]
                size = run.metrics("checkpoint")[-1]["values"]["bytes"]
        times = {
            way: {
                "median_ms": round(1000 * statistics.median(each), 3),
                "least_ms": round(1000 * min(each), 3),
            }
            for way, each in seconds.items()
        }
        found.append({"processes": processes, "checkpoint_bytes": size, **times})
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Kill, measure, print, and keep the figures when asked to; exit code 1 when a step was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=200, help="0: keep what the file of results says of them"
    )
    parser.add_argument("--sharded-kills", type=int, default=60, help="of sharded models; 0: as kills")
    parser.add_argument(
        "--rounds", type=int, default=6, help="of measuring the cost; 0: keep what the file says"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.005, help="seconds that a step takes at least")
    parser.add_argument("--setups", nargs="+", help="only those whose names have one of these words")
    parser.add_argument("--workers", type=int, default=1, help="setups that are killed side by side")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"schema": "slurmgpu.benchmark/1", "benchmark": "every_step"}
    if given.json and given.json.exists():
        result |= json.loads(given.json.read_text())
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="every-step-", ignore_cleanup_errors=True) as folder:
        if given.rounds:
            began = time.monotonic()
            (Path(folder) / "cost").mkdir()
            costs = cost(Path(folder) / "cost", given.rounds)
            setting = {"rounds": given.rounds, "steps_of_a_round": STEPS}
            result["cost"] = {**about(setting, began), "results": costs}
        for name, kills, all_setups in (
            ("kills", given.kills, SETUPS),
            ("kills_sharded", given.sharded_kills, SHARDED),
        ):
            if kills:
                chosen = [
                    each
                    for each in all_setups
                    if not given.setups or any(word in str(each) for word in given.setups)
                ]
                result[name], failed = several(chosen, kills, given, Path(folder, name))
                failures += failed
    text = json.dumps(result, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    sys.exit(1 if failures else 0)


def several(
    chosen: Sequence[Setup], kills: int, given: argparse.Namespace, folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """So many kills, in setups side by side; what they did, and what went wrong."""
    began, found = time.monotonic(), Found()
    for strategy in {each.strategy for each in chosen}:
        soak.preload(strategy)
    # What these processes fork has torch loaded.
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("fork")) as pool:
        parts = [
            pool.submit(
                kill,
                setup,
                folder / str(number),
                kills * (number + 1) // len(chosen) - kills * number // len(chosen),
                1000 * given.seed + number,
                given.pause,
            )
            for number, setup in enumerate(chosen)
        ]
        for each in parts:
            found.add(each.result())
    setting = {
        "seed": given.seed,
        "checkpoint_steps": 1,
        "checkpoint_shared_steps": SHARED,
        "pause": given.pause,
    }
    results = {
        "kills": dict(sorted(found.kills.items())),
        "kills_in_all": sum(found.kills.values()),
        "kills_before_training": found.before,
        "runs": found.runs,
        "starts": found.starts,
        "completed_steps_lost": sum(found.lost),
        "completed_steps_lost_with_a_node": sum(found.lost_with_node),
        "failures": found.failures,
    }
    document = {**about(setting, began), "setups": [str(each) for each in chosen], "results": results}
    return document, found.failures


def about(setting: dict[str, Any], began: float) -> dict[str, Any]:
    """How something was measured, where, and for how long."""
    machine = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],  # over 1, 5, 15 minutes, with its own
        "python": platform.python_version(),
    }
    return {
        "setting": setting,
        "machine": machine,
        "versions": {"torch": torch.__version__},
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    main()
