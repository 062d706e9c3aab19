"""Toy jobs of known size, reported on and run again with what ``slurmgpu report`` proposes.

    python benchmarks/report.py [--json FILE] [--at-once N]

Each toy says itself how much memory and CPU time it took; the report, from accounting alone, is held against that. Then it
runs again with the proposed request, on a throwaway Slurm that ends jobs that go over their memory (OverMemoryKill). A toy
that asks for too little memory shows that it does.
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
        },
    }
    text = json.dumps(document)
    if given.json:
        given.json.write_text(text + "\n")
    print(json.dumps(document["results"], indent=1))


if __name__ == "__main__":
    main()
