"""What a job's sampler reads of a GPU that works, beside what nvidia-smi says at the same time, and what it costs.

    python benchmarks/gpu/sampling.py [--tiny] [--json FILE]

The sampler is started as a batch script starts it; the job beside it multiplies matrices and keeps 4 GB.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common
import torch

SECONDS = 24
LOAD = """
import sys, time, torch
kept = torch.ones(1 << 30, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
ends = time.monotonic() + float(sys.argv[1])
while time.monotonic() < ends:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""
QUERY = "utilization.gpu,memory.used,power.draw,clocks.sm"


def measure(_tiny: bool, folder: Path) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"left_out": "needs an NVIDIA GPU"}
    run_dir = folder / "run"
    shutil.copytree(common.ROOT / "slurmgpu" / "sampling", run_dir / "code" / "slurmgpu_sampling")
    (run_dir / "code" / "slurmgpu_sampling" / "python").write_text(f"{sys.executable}\n")
    start = f'bash "{run_dir}/code/slurmgpu_sampling/start.sh" 2 1 </dev/null >/dev/null 2>&1 &'
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "gpu1"}
    environment.pop("SLURMGPU_LOCAL_JOB", None)
    script = subprocess.Popen(["bash", "-c", f"{start}\nread -r _"], stdin=subprocess.PIPE, env=environment)
    load = subprocess.Popen([sys.executable, "-c", LOAD, str(SECONDS)], env=environment)
    told: list[list[float]] = []
    while load.poll() is None:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            told.append([float(each) for each in done.stdout.split("\n")[0].split(",")])
        time.sleep(1)
    time.sleep(3)
    script.kill()
    script.wait()
    (path,) = (run_dir / "samples").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    samples = [row for row in rows if row["kind"] == "sample"]
    first, last = samples[0], samples[-1]
    seconds = last["seconds"] - first["seconds"]
    middle = told[len(told) // 3 : -2]
    return {
        "nvidia_smi": dict(
            zip(QUERY.split(","), map(statistics.median, zip(*middle, strict=True)), strict=True)
        ),
        "sampler": samples[-3]["gpus"],
        "first_row": rows[0],
        "samples": len(samples),
        "share_of_a_core": (last["own_cpu_seconds"] - first["own_cpu_seconds"]) / seconds,
        "rows": rows[-4:],
    }


if __name__ == "__main__":
    common.main(__doc__, measure)
