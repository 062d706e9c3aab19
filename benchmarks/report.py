"""Toy jobs of known size, reported on and run again with what ``slurmgpu report`` proposes.

    python benchmarks/report.py [--json FILE] [--at-once N]

Each toy says itself how much memory and CPU time it took; the report, from accounting alone, is held against that. Then it
runs again with the proposed request, on a throwaway Slurm that ends jobs that go over their memory (OverMemoryKill). A toy
that asks for too little memory shows that it does.

Trainings whose loader takes a known part of each step, by computing or by waiting for storage, show whether the report sees
that part, and what it makes of it.
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

from tests.slurm.throwaway import ThrowawaySlurm  # noqa: E402
from tests.slurm.tool import Submitted, Tool  # noqa: E402

TOY = """
import json, os, sys, time

megabytes, burn, seconds, name = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
begin = time.monotonic()
held = bytearray(megabytes << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
while time.process_time() < burn:
    sum(range(10000))
time.sleep(max(0.0, seconds - (time.monotonic() - begin)))
peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
task = os.environ.get("SLURM_PROCID", "0")
with open(f"{name}.{task}.json", "w") as file:
    json.dump({"memory": peak, "cpu": time.process_time(), "seconds": time.monotonic() - begin}, file)
"""


LOADS = """
import json, os, time
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

told = {"waited": 0.0, "loaded": 0.0, "begin": None, "end": None, "cpu": 0.0}

@register_optimizer_step_post_hook
def ended(*_):
    told.update(end=time.monotonic(), cpu=time.process_time())

def spend(seconds, waits):
    end = time.monotonic() + seconds
    if waits:
        time.sleep(seconds)
    while time.monotonic() < end:
        pass

class Data(torch.utils.data.Dataset):
    def __init__(self, cfg):
        self.cfg = cfg
    def __len__(self):
        return 1000000
    def __getitem__(self, at):
        begin = time.monotonic()
        spend(self.cfg.load, self.cfg.waits)
        told["loaded"] += time.monotonic() - begin
        return torch.ones(3), torch.ones(1)

class Loads:
    def model(self, cfg):
        self.cfg = cfg
        return nn.Linear(3, 1)
    def dataset(self, cfg, split):
        return Data(cfg) if split == "train" else None
    def loss(self, model, batch):
        # From the last step's update to the batch: all that the loader does, and whatever else stands between.
        began = time.monotonic()
        told["begin"] = told["begin"] or began
        told["waited"] += began - (told["end"] or began)
        spend(self.cfg.step, self.cfg.workers > 0)
        if told["end"]:
            with open(self.cfg.name + ".json", "w") as file:
                json.dump(told, file)
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
"""


class Loader(NamedTuple):
    """A training: seconds that its loader and the rest of a step take, and whether the loader waits or computes.

    With workers, of which each has a CPU, the rest of a step waits, as for a GPU.
    """

    load: float
    step: float
    waits: bool = False
    workers: int = 0

    @property
    def name(self) -> str:
        workers = f"-{self.workers}-workers" if self.workers else ""
        return f"loader-{self.load:g}-{self.step:g}{'-waits' if self.waits else ''}{workers}"

    @property
    def seconds(self) -> float:
        """Of a step."""
        return max(self.load / self.workers, self.step) if self.workers else self.load + self.step

    def job(self, seconds: float = 64) -> str:
        config = json.dumps({"name": self.name, "load": self.load, "step": self.step, "waits": self.waits})
        return (
            f"name: {self.name}\nresources: {{gpus: 1, cpus_per_gpu: {self.workers or 1}, memory: 4G, time: 30}}\n"
            f"train: {{task: loads.py:Loads, max_steps: {round(seconds / self.seconds)}, batch_size: 1, log_every: 50, "
            f"workers: {self.workers}, config: {config}}}\n"
        )


def wait(true: dict[str, float]) -> float:
    """Which part of a step the batch was waited for, by the task's own clock."""
    return true["waited"] / (true["end"] - true["begin"])


LOADERS = (
    Loader(0.038, 0.062),
    Loader(0.06, 0.04, waits=True),
    Loader(0.012, 0.088),
    Loader(0.005, 0.095, waits=True),
    Loader(0.4, 0.12, workers=2),
)


class Toy(NamedTuple):
    """What a job takes: memory of a task, CPU seconds, seconds, and its tasks; ``srun``: in a step of its own."""

    megabytes: int
    burn: float
    seconds: float
    tasks: int = 1
    srun: bool = False

    @property
    def name(self) -> str:
        return (
            f"toy-{self.megabytes}-{self.burn:g}-{self.seconds:g}-{self.tasks}{'-srun' if self.srun else ''}"
        )

    def script(self) -> str:
        start = "srun " if self.srun or self.tasks > 1 else ""
        return f"#!/bin/bash\n{start}python3 toy.py {self.megabytes} {self.burn:g} {self.seconds:g} {self.name}\n"


TOYS = (
    *(Toy(250 + 40 * n, 0, 66 + 2 * n) for n in range(6)),
    *(Toy(260 + 50 * n, 5 + 3 * n, 68 + 3 * n) for n in range(5)),
    *(Toy(280 + 60 * n, 2 * n, 66 + 4 * n, srun=True) for n in range(5)),
    *(Toy(240 + 30 * n, n, 70, tasks=2) for n in range(4)),
)


class Enforcing(ThrowawaySlurm):
    """A throwaway Slurm that ends jobs over their memory, by its own samples."""

    def _configured(self) -> None:
        super()._configured()
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.write("JobAcctGatherParams=OverMemoryKill\n")


def submit(running: ThrowawaySlurm, work: Path, toy: Toy, request: Sequence[str]) -> int:
    """Submit a toy; its job id."""
    script = work / f"{toy.name}.sh"
    script.write_text(toy.script())
    options = [f"--job-name={toy.name}", "--nodes=1", f"--ntasks={toy.tasks}", "--output=%x.%j.out", *request]
    answer = running.run(["sbatch", "--parsable", *options, str(script)], cwd=work)
    if answer.returncode:
        raise RuntimeError(answer.stderr)
    return int(answer.stdout)


def reported(running: ThrowawaySlurm, work: Path, job: int) -> dict[str, Any]:
    """What ``slurmgpu report --json`` says of a job."""
    answer = subprocess.run(
        [sys.executable, "-m", "slurmgpu", "report", str(job), "--json"],
        cwd=work, env=running.env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    (found,) = json.loads(answer.stdout)["jobs"]
    return dict(found)


def truth(work: Path, toy: Toy) -> dict[str, float]:
    """What the toy's tasks say that they took, together."""
    told = [json.loads((work / f"{toy.name}.{task}.json").read_text()) for task in range(toy.tasks)]
    return {"memory": sum(one["memory"] for one in told), "cpu": sum(one["cpu"] for one in told)}


def request(found: dict[str, Any], toy: Toy) -> list[str]:
    """The proposals as options of sbatch's."""
    options = {"--mem": "4G", "--time": "60", "--cpus-per-task": "4"}
    for one in found["next"]:
        if one["field"] == "memory":
            options["--mem"] = one["change"][1]
        elif one["field"] == "time":
            options["--time"] = one["change"][1]
        elif one["field"] == "cpus":
            options["--cpus-per-task"] = str(max(1, -(-one["proposed"] // toy.tasks)))
    return [f"{name}={value}" for name, value in options.items()]


def tried(running: ThrowawaySlurm, work: Path, toys: Sequence[Toy], at_once: int) -> Iterator[dict[str, Any]]:
    """Run toys twice, the second time with what is proposed: what was found of each."""
    (work / "toy.py").write_text(TOY)
    for begin in range(0, len(toys), at_once):
        group = toys[begin : begin + at_once]
        first = [submit(running, work, toy, ["--mem=4G", "--time=60", "--cpus-per-task=4"]) for toy in group]
        states = [running.wait_for(job, timeout=600) for job in first]
        found = [reported(running, work, job) for job in first]
        known = [truth(work, toy) for toy in group]
        again = [submit(running, work, toy, request(one, toy)) for toy, one in zip(group, found, strict=True)]
        ended = [running.wait_for(job, timeout=600) for job in again]
        for toy, state, one, true, end in zip(group, states, found, known, ended, strict=True):
            memory = next((p["proposed"] for p in one["next"] if p["field"] == "memory"), None)
            yield {
                "toy": toy.name,
                "tasks": toy.tasks,
                "state": state,
                "memory_true": true["memory"],
                "memory_reported": one["used"]["memory_peak"],
                "memory_exact": one["used"]["memory_peak_exact"],
                "cpu_true": round(true["cpu"], 2),
                "cpu_reported": one["used"]["cpu_seconds"],
                "asked_again": request(one, toy),
                "memory_proposed_over_need_and_head_room": memory
                and round(memory / (1.2 * true["memory"]), 3),
                "state_again": end,
            }


def begin_training(tool: Tool, loader: Loader) -> Submitted:
    """Submit a training with a loader of a known share."""
    tool.file("loads.py", LOADS)
    return tool.submit(str(tool.file(f"{loader.name}.yaml", loader.job())))


def end_training(tool: Tool, loader: Loader, job: Submitted) -> dict[str, Any]:
    """Wait for it: which part of a step its loader took, by itself and by the report, and what is said of it."""
    state = tool.slurm.wait_for(job.job_id, timeout=600, complete_row=True)
    if state != "COMPLETED":
        raise RuntimeError(job.log)
    found = json.loads(tool("report", str(job.job_id), "--json").stdout)["jobs"][0]
    true = json.loads((tool.work / f"{loader.name}.json").read_text())
    seconds = true["end"] - true["begin"]
    return {
        "loader": loader.name,
        "wait_true": round(wait(true), 4),
        # Without workers: what the data set alone took of it. Samplers, seeds and collating come on top.
        "data_set_alone": None if loader.workers else round(true["loaded"] / seconds, 4),
        "wait_reported": round(found["loader_wait_share"], 4),
        # Of workers it is not known here.
        "cpus_busy_true": None if loader.workers else round(true["cpu"] / seconds, 3),
        "cpus_busy_reported": round(found["used"]["cpus"], 3),
        "cpus_proposed": [one["change"] + [one["why"]] for one in found["next"] if one["field"] == "cpus"],
        "workers_proposed": [
            one["change"] + [one["why"]] for one in found["next"] if one["field"] == "workers"
        ],
    }


def main() -> None:
    """Run all toys and print, or write, what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--at-once", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Enforcing() as running:
        work = Path(folder)
        found = list(tried(running, work, TOYS, given.at_once))
        small = Toy(400, 0, 60)
        control = running.wait_for(submit(running, work, small, ["--mem=200M", "--time=10"]), timeout=600)
        version = running.version
        tool = Tool(running, work)
        loaders = []
        for pair in (LOADERS[:2], LOADERS[2:4], LOADERS[4:]):  # as many as there are cores
            begun = [(one, begin_training(tool, one)) for one in pair]
            loaders += [end_training(tool, one, job) for one, job in begun]
    ratios = [one["memory_proposed_over_need_and_head_room"] for one in found if one["memory_exact"]]
    document = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "report",
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {"slurm": version},
        "results": {
            "toys": found,
            "ran_again_to_the_end": sum(one["state_again"] == "COMPLETED" for one in found),
            "out_of_memory_again": sum(one["state_again"] == "OUT_OF_MEMORY" for one in found),
            "worst_memory_error": max(abs(one["memory_reported"] / one["memory_true"] - 1) for one in found),
            # Of less CPU time the shell and srun, which Slurm counts and the toy does not, are a larger part.
            "worst_cpu_error_from_5_s_on": max(
                abs(one["cpu_reported"] / one["cpu_true"] - 1) for one in found if one["cpu_true"] >= 5
            ),
            "memory_proposed_over_need_and_head_room": {"least": min(ratios), "most": max(ratios)},
            "control_with_too_little_memory": control,
            "loaders": loaders,
            "worst_loader_error": max(abs(one["wait_reported"] / one["wait_true"] - 1) for one in loaders),
        },
    }
    text = json.dumps(document)
    if given.json:
        given.json.write_text(text + "\n")
    print(json.dumps(document["results"], indent=1))


if __name__ == "__main__":
    main()
