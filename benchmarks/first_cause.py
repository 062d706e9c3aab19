"""Whether the first cause of a failed job is found: 100 provoked failures of many ranks, and a log of 1 GB.

    python benchmarks/first_cause.py [--jobs N] [--only LAUNCHER:FAULT ...] [--json FILE]

Each job is 2 nodes x 4 processes of a Slurm of its own, submitted by ``slurmgpu submit`` and started by torchrun, srun or
accelerate in turn. One rank, drawn by a fixed seed, fails in one of seven ways while all are in a loop of collectives;
what its script wrote down at its end is compared with what was done. The logs of 1 GB are made, with the failure in their
middle and at their end. Needs the Slurm packages, torch and accelerate; two jobs at a time, about 20 s each on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.diagnosis.facts import Facts  # noqa: E402
from slurmgpu.diagnosis.judging import diagnose  # noqa: E402
from tests.slurm.throwaway import ThrowawaySlurm  # noqa: E402
from tests.slurm.tool import Tool  # noqa: E402

LAUNCHERS = ("torchrun", "srun", "accelerate")
# What is done to a rank, and the kinds of cause that are right.
FAULTS = {
    "exception": {"python-exception"},
    "out-of-memory": {"host-memory"},
    "sigkill": {"killed"},
    "exit-code": {"exit-code"},
    "missing-file": {"file-missing"},
    "segfault": {"segfault"},
    "hang": {"gloo-timeout"},
}
PROGRAM = """
import ctypes, datetime, os, signal, sys, time
import torch
import torch.distributed as dist

fault, failing = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20 if fault == "hang" else 300))
values = torch.ones(8)
dist.barrier()
for step in range(12):
    dist.all_reduce(values)
    if rank == 0:
        print(f"step {step}: loss {1 / (step + 1):.3f}", flush=True)
    if step == 6 and rank == failing:
        if fault == "exception":
            raise ValueError(f"batch {step} has no labels")
        if fault == "out-of-memory":  # what slurmstepd says of it, and what the kernel does
            step_id = os.environ["SLURM_JOB_ID"] + ".0"
            print(f"slurmstepd: error: Detected 1 oom_kill event in StepId={step_id}. Some of the step tasks have been "
                  "OOM Killed.", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit-code":
            os._exit(7)
        if fault == "missing-file":
            open("data/part-0007.bin")
        if fault == "segfault":
            ctypes.string_at(0)
        if fault == "hang":
            time.sleep(3600)
dist.destroy_process_group()
"""


def cases(jobs: int, only: list[str]) -> list[tuple[str, str, int]]:
    """Launcher, fault and rank of each job: all pairs in turn, the rank drawn."""
    draw = random.Random(15)
    pairs = [(launcher, fault) for fault in FAULTS for launcher in LAUNCHERS]
    drawn = [(*pairs[number % len(pairs)], draw.randrange(8)) for number in range(jobs)]
    return [one for one in drawn if not only or f"{one[0]}:{one[1]}" in only]


def run(tool: Tool, case: tuple[int, tuple[str, str, int]]) -> dict[str, Any]:
    """Submit one job, wait for its end, and judge what the reader and the job's script say of it."""
    number, (launcher, fault, rank) = case
    size = ("-N", "2", "--gpus-per-node", "4", "-t", "30", "--launch", launcher)
    made = tool.submit(*size, "--wait", "--", "python", "fail.py", fault, str(rank))
    tool.slurm.wait_for(made.job_id, timeout=600)
    file = made.run_dir / f"cause.{made.job_id}.json"
    written = json.loads(file.read_text()) if file.exists() else {}
    code = int((made.run_dir / f"exit_code.{made.job_id}").read_text())
    # What the script's end has added is not there when it reads.
    log = "".join(line for line in made.log.splitlines(keepends=True) if not line.startswith("slurmgpu: f"))
    path = made.run_dir / "read.log"
    path.write_text(log)
    began = time.monotonic()
    cause = diagnose([str(path)], Facts(exit_code=code, processes=8))
    seconds = time.monotonic() - began
    told = {} if cause is None else {key: getattr(cause, key) for key in ("rank", "kind", "host", "certain")}

    def right(one: dict[str, Any]) -> bool:
        return one.get("rank") == rank and one.get("kind") in FAULTS[fault]

    judged = {"launcher": launcher, "fault": fault, "rank": rank, "right": right(told), "told": told,
              "right_at_the_end": right(written), "seconds": round(seconds, 4)}  # fmt: skip
    print(number, json.dumps(judged), flush=True)
    return judged


def large_logs(folder: Path) -> list[dict[str, Any]]:
    """The time for logs of 1 GB in which the failure stands at different places."""
    noise = b"".join(
        b"\r%3d%%|####      | %d/100000 [00:%02d<10:00, 12.3it/s, loss=%.4f]"
        % (n % 100, n, n % 60, 1 / (n + 1))
        + (b"\nepoch %d: loss %.5f, 1234.5 samples/s\n" % (n, 1 / (n + 1)) if n % 7 == 0 else b"")
        for n in range(20000)
    )
    failure = (
        b"".join(
            b"[rank3]: %s\n" % line
            for line in (
                b"Traceback (most recent call last):",
                b'  File "/home/me/train.py", line 12, in <module>',
                b"    loss = model(batch)",
                b"KeyError: 'labels'",
            )
        )
        + b"srun: error: node1: task 3: Exited with exit code 1\n"
    )
    gigabyte = 10**9
    results = []
    for place, share in (("end", 1.0), ("last tenth", 0.9), ("middle", 0.5)):
        path = folder / "large.log"
        with path.open("wb") as file:
            while file.tell() < gigabyte * share:
                file.write(noise)
            file.write(failure)
            while file.tell() < gigabyte:
                file.write(noise)
        walls, works = [], []
        for _ in range(5):
            began, worked = time.monotonic(), time.process_time()
            cause = diagnose([str(path)], Facts(exit_code=1))
            walls.append(round(time.monotonic() - began, 3))
            works.append(round(time.process_time() - worked, 3))
        found = None if cause is None else (cause.rank, cause.kind)
        size = path.stat().st_size
        path.unlink()
        results.append({"failure_at": place, "bytes": size, "found": found == (3, "python-exception"),
                        "seconds": walls, "cpu_seconds": works})  # fmt: skip
    return results


def main() -> None:
    """Provoke, compare, measure; exit code 1 unless all are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    done, release = provoke(given.jobs, given.only)
    with tempfile.TemporaryDirectory() as temporary:
        large = [] if given.only else large_logs(Path(temporary))
    right = sum(one["right"] for one in done)
    for one in (*large, *(one for one in done if not one["right"])):
        print(json.dumps(one))
    print(f"{right} of {len(done)} right")
    if given.json:
        document = {
            "schema": "slurmgpu.benchmark/1",
            "benchmark": "first_cause",
            "setting": {"nodes": 2, "processes_per_node": 4, "faults": list(FAULTS), "launchers": LAUNCHERS},
            "machine": {"machine": platform.machine(), "cpus": os.cpu_count(), "load": os.getloadavg()[1],
                        "python": platform.python_version()},
            "versions": {"slurm": release, "torch": version("torch"), "accelerate": version("accelerate")},
            "results": {"right": right, "of": len(done), "jobs": done, "large_logs": large},
        }  # fmt: skip
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    if right < len(done) or not all(one["found"] for one in large):
        raise SystemExit(1)


def provoke(jobs: int, only: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Run the jobs, two at a time; return what was found of each, and the version of Slurm."""
    with ThrowawaySlurm() as slurm, tempfile.TemporaryDirectory() as temporary:
        tool = Tool(slurm, Path(temporary))
        tool.file("fail.py", PROGRAM)
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda case: run(tool, case), enumerate(cases(jobs, only)))), slurm.version


if __name__ == "__main__":
    main()
