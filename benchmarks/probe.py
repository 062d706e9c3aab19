"""Toy jobs of known size, probed for a minute, and run again, whole, with what ``slurmgpu probe --apply`` wrote.

    python benchmarks/probe.py [--json FILE] [--at-once N] [--toys N]

Each toy says itself, every second, how much memory and CPU time it has taken; what the probe says is held against that. Then
it runs to its end with the request that is in its job file by then, on a throwaway Slurm that ends jobs that go over their
memory (OverMemoryKill). Trainings say how long they will take: that is held against how long they took.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import Enforcing, reported  # noqa: E402
from tests.slurm.throwaway import ThrowawaySlurm  # noqa: E402
from tests.slurm.tool import Tool  # noqa: E402

TRUTH = """
import json, os, threading, time

def tell(name):
    begin = time.monotonic()
    def telling():
        with open(name, "a") as file:
            while True:
                status = open("/proc/self/status").read()
                peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
                now = {"memory": peak, "cpu": time.process_time(), "seconds": time.monotonic() - begin}
                print(json.dumps(now), file=file, flush=True)
                time.sleep(1)
    threading.Thread(target=telling, daemon=True).start()
"""

COMMAND = """
import os, sys, time
import truth

megabytes, share, seconds, name = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
truth.tell(f"{name}.{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_PROCID', 0)}.jsonl")
begin = time.monotonic()
held = bytearray(megabytes << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
while time.monotonic() - begin < seconds:
    if time.process_time() < share * (time.monotonic() - begin):
        sum(range(10000))
    else:
        time.sleep(0.01)
"""

TASK = """
import os, time, torch, truth

class Data(torch.utils.data.Dataset):
    def __init__(self, samples, wait):
        self.samples, self.wait = samples, wait
    def __len__(self):
        return self.samples
    def __getitem__(self, index):
        time.sleep(self.wait)
        return torch.ones(8), torch.ones(1)

class Toy:
    def model(self, cfg):
        truth.tell(f"{cfg.name}.{os.environ['SLURM_JOB_ID']}.0.jsonl")
        self.held = torch.ones(cfg.megabytes, 1 << 18)  # fp32: MiB
        self.compute = cfg.compute
        return torch.nn.Linear(8, 1)
    def dataset(self, cfg, split):
        return Data(cfg.samples if split == "train" else 64, cfg.wait)
    def loss(self, model, batch):
        time.sleep(self.compute)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    def evaluate(self, model, batch):
        return {"loss": (torch.nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0]))}
"""


class Toy(NamedTuple):
    """What a command takes: memory of a task, the share of a core that it burns, seconds, and its tasks."""

    megabytes: int
    share: float
    seconds: int
    tasks: int = 1

    @property
    def name(self) -> str:
        return f"command-{self.megabytes}-{self.share:g}-{self.tasks}"

    def job(self) -> str:
        """Its job file."""
        words = ["python3", "toy.py", str(self.megabytes), f"{self.share:g}", str(self.seconds), self.name]
        launch = (
            f"launch: srun\nresources: {{tasks_per_node: {self.tasks}, " if self.tasks > 1 else "resources: {"
        )
        return f'name: {self.name}\n{launch}memory: 4G, cpus_per_task: 4, time: "24:00:00"}}\ncommand: {json.dumps(words)}\n'


class Training(NamedTuple):
    """A training: memory, seconds of a sample's loading and of a step's computing, and steps of 16 samples."""

    megabytes: int
    wait: float
    compute: float
    steps: int
    epochs: int = 1
    tasks: int = 1

    @property
    def name(self) -> str:
        return f"training-{self.megabytes}-{self.wait:g}-{self.compute:g}"

    @property
    def waits(self) -> float:
        """The share of a step that is waited for the loader."""
        return 16 * self.wait / (16 * self.wait + self.compute)

    def job(self) -> str:
        """Its job file."""
        config = {"name": self.name, "megabytes": self.megabytes, "wait": self.wait, "compute": self.compute}
        config["samples"] = 16 * self.steps // self.epochs
        train = {
            "task": "task.py:Toy",
            "batch_size": 16,
            "epochs": self.epochs,
            "workers": 0,
            "config": config,
        }
        resources = '{memory: 4G, cpus_per_task: 4, time: "24:00:00"}'
        return f"name: {self.name}\nresources: {resources}\ntrain: {json.dumps(train)}\n"


TOYS: tuple[Toy | Training, ...] = (
    *(Toy(450 + 90 * n, 0, 90) for n in range(3)),
    *(Toy(480 + 120 * n, 0.3 + 0.15 * n, 90) for n in range(3)),
    *(Toy(260 + 80 * n, 0.15 * n, 90, tasks=2) for n in range(2)),
    Training(100, 0.01, 0.04, 500, epochs=5),
    Training(300, 0.0, 0.2, 600, epochs=4),
    Training(150, 0.001, 0.284, 400, epochs=3),
    Training(500, 0.002, 0.368, 300, epochs=4),
)


def probed(tool: Tool, toy: Toy | Training) -> subprocess.Popen[str]:
    """Probe a toy for a minute, and let its job file be changed."""
    (tool.work / f"{toy.name}.yaml").write_text(toy.job())
    return subprocess.Popen(
        [sys.executable, "-m", "slurmgpu", "probe", f"{toy.name}.yaml", "--minutes", "1", "--apply", "--json"],
        cwd=tool.work, env=tool.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def truth(work: Path, toy: Toy | Training, job: int) -> dict[str, float]:
    """What the tasks of a toy said last in a job, together."""
    last = [
        json.loads((work / f"{toy.name}.{job}.{task}.jsonl").read_text().splitlines()[-1])
        for task in range(toy.tasks)
    ]
    seconds = max(one["seconds"] for one in last)
    return {"memory": sum(one["memory"] for one in last), "cpus": sum(one["cpu"] for one in last) / seconds}


def tried(
    running: ThrowawaySlurm, folder: Path, toys: Sequence[Toy | Training], at_once: int
) -> Iterator[dict[str, Any]]:
    """Probe toys and run them whole with what was proposed: what was found of each."""
    tool = Tool(running, folder)
    for name, text in (("truth.py", TRUTH), ("toy.py", COMMAND), ("task.py", TASK)):
        (tool.work / name).write_text(text)
    for begin in range(0, len(toys), at_once):
        group = toys[begin : begin + at_once]
        probes = [probed(tool, toy) for toy in group]
        found = []
        for toy, one in zip(group, probes, strict=True):
            out, said = one.communicate(timeout=600)
            if one.returncode:
                raise RuntimeError(f"{toy.name}: {out}{said}")
            found.append(json.loads(out))
        again = [tool.submit(f"{toy.name}.yaml").job_id for toy in group]
        ended = [running.wait_for(job, timeout=900, complete_row=True) for job in again]
        for toy, one, job, state in zip(group, found, again, ended, strict=True):
            yield _of_one(running, tool.work, toy, one, job, state)


def _of_one(
    running: ThrowawaySlurm, work: Path, toy: Toy | Training, found: dict[str, Any], job: int, state: str
) -> dict[str, Any]:
    used = found["job"]["used"]
    then, need = truth(work, toy, int(found["job"]["job_id"])), truth(work, toy, job)
    next_one = {one["field"]: one for one in found["job"]["next"]}
    took = reported(running, work, job)["used"]["elapsed"]
    return {
        "toy": toy.name,
        "tasks": toy.tasks,
        "memory_true": then["memory"],
        "memory_probed": used["memory_peak"],
        "memory_grows": found["memory_grows"],
        "cpus_true": round(then["cpus"], 3),
        "cpus_probed": round(used["cpus"], 3),
        "loader_wait_true": round(toy.waits, 3) if isinstance(toy, Training) else None,
        "loader_wait_probed": found["job"]["loader_wait_share"],
        "whole_seconds_said": found["whole_seconds"],
        "whole_seconds_true": took,
        "proposed": {name: one["change"] for name, one in next_one.items()},
        "memory_proposed_over_need_and_head_room": round(
            next_one["memory"]["proposed"] / (1.2 * need["memory"]), 3
        )
        if "memory" in next_one
        else None,
        "state_again": state,
    }


def _worst(found: Sequence[dict[str, Any]], said: str, true: str, least: float = 0.0) -> float | None:
    errors = [
        abs(one[said] / one[true] - 1)
        for one in found
        if one[said] is not None and one[true] is not None and one[true] > least
    ]
    return round(max(errors), 4) if errors else None


def results(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that count, over all toys."""
    ratios = [
        one["memory_proposed_over_need_and_head_room"]
        for one in found
        if one["memory_proposed_over_need_and_head_room"]
    ]
    trainings = [one for one in found if one["whole_seconds_said"] is not None]
    alike = [
        one for one in trainings if "workers" not in one["proposed"]
    ]  # with them, it is another training
    return {
        "toys": list(found),
        "ran_again_to_the_end": sum(one["state_again"] == "COMPLETED" for one in found),
        "out_of_memory_again": sum(one["state_again"] == "OUT_OF_MEMORY" for one in found),
        # Slurm counts the batch shell and the sampler, too.
        "most_memory_beside_a_toy": max(one["memory_probed"] - one["memory_true"] for one in found),
        "worst_memory_error": _worst(found, "memory_probed", "memory_true"),
        # Below it, the shell, srun and the start of Python, which the toy does not count, are a larger part.
        "worst_cpu_error_from_a_tenth_of_a_core_on": _worst(found, "cpus_probed", "cpus_true", 0.1),
        "worst_loader_wait_difference": max(
            (abs(one["loader_wait_probed"] - one["loader_wait_true"]) for one in trainings), default=None
        ),
        "worst_time_error": _worst(alike, "whole_seconds_said", "whole_seconds_true"),
        "memory_proposed_over_need_and_head_room": {"least": min(ratios), "most": max(ratios)}
        if ratios
        else None,
    }


def main() -> None:
    """Run all toys and print, or write, what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--toys", type=int, default=len(TOYS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Enforcing() as running:
        found = list(tried(running, Path(folder), TOYS[: given.toys], given.at_once))
        version = running.version
    document = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "probe",
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {"slurm": version},
        "results": results(found),
    }
    if given.json:
        given.json.write_text(json.dumps(document) + "\n")
    print(json.dumps(document["results"], indent=1))


if __name__ == "__main__":
    main()
