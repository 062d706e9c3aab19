"""What the sampler of a job costs: its CPU time in an hour at its default interval, on a node with 8 GPUs.

    python benchmarks/sampler.py [--minutes N] [--processes N] [--json FILE]

The GPUs are stand-ins: a library in NVML's place (tests/nvml.c, compiled here with gcc), and a program in nvidia-smi's
place, which costs what starting a shell does: a real one loads a driver's library, and costs more. So does a real NVML,
whose calls enter the kernel. What is measured for true is Python's own part and the reading of /proc. The job has N
processes that sleep. Both ways run side by side; what counts is the CPU time from the first sample on, with that of the
programs that it starts, as the kernel has it (getrusage). The start is given apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GOAL = 0.005  # of a core
_SMI = """\
#!/bin/sh
for index in 0 1 2 3 4 5 6 7; do
    echo "$index, GPU-$index, NVIDIA H100 80GB HBM3, 75, 20480, 81920, 300.00, 1980, 61, 0x0000000000000004, 0"
done
"""


def started(folder: Path, name: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A batch script whose sampler it is; it sleeps until it is killed."""
    run_dir = folder / name
    shutil.copytree(ROOT / "slurmgpu" / "sampling", run_dir / "code" / "slurmgpu_sampling")
    (run_dir / "code" / "slurmgpu_sampling" / "python").write_text(f"{sys.executable}\n")
    start = f'bash "{run_dir}/code/slurmgpu_sampling/start.sh" 15 8 </dev/null >/dev/null 2>&1 &'
    own = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": name}
    return subprocess.Popen(
        ["bash", "-c", f"{start}\nread -r _"], stdin=subprocess.PIPE, env={**os.environ, **own, **env}
    )


def measured(folder: Path, name: str) -> dict[str, Any]:
    (path,) = (folder / name / "samples").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    samples = [row for row in rows if row["kind"] == "sample"]
    first, last = samples[0], samples[-1]
    seconds = last["seconds"] - first["seconds"]
    used = last["own_cpu_seconds"] - first["own_cpu_seconds"]
    # At the beginning samples are closer together, so that this is more than a long job's share.
    return {
        "read_by": rows[0]["gpu_source"],
        "python": rows[0]["python"],
        "gpus": len(last["gpus"]),
        "processes_of_the_job": max(one["job"]["processes"] for one in samples),
        "samples": len(samples),
        "seconds": round(seconds, 1),
        "cpu_seconds_of_the_start": first["own_cpu_seconds"],
        "cpu_seconds": round(used, 3),
        "cpu_milliseconds_of_a_sample": round(used / (len(samples) - 1) * 1e3, 2),
        "cpu_seconds_in_an_hour": round(used / seconds * 3600, 2),
        "share_of_a_core": round(used / seconds, 6),
        "bytes_of_a_sample": len(json.dumps(last, separators=(",", ":"))) + 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--processes", type=int, default=64, help="of the job, besides its shell")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurmgpu-sampler-") as name:
        folder = Path(name)
        (folder / "lib").mkdir()
        (folder / "bin").mkdir()
        library = folder / "lib" / "libnvidia-ml.so.1"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests" / "nvml.c"], check=True
        )
        program = folder / "bin" / "nvidia-smi"
        program.write_text(_SMI)
        program.chmod(0o755)
        ways = {
            "nvml": {"LD_LIBRARY_PATH": str(folder / "lib")},
            "nvidia-smi": {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        }
        jobs = [
            subprocess.Popen(["sleep", "100000"], env={"SLURM_JOB_ID": "1", "SLURMD_NODENAME": way})
            for way in ways
            for _ in range(given.processes)
        ]
        scripts = [started(folder, way, env) for way, env in ways.items()]
        try:
            time.sleep(given.minutes * 60)
        finally:
            for process in (*jobs, *scripts):
                process.kill()
                process.wait()
        time.sleep(5)  # they see that the script has gone
        found = {way: measured(folder, way) for way in ways}
    document = {
        "schema": "slurmgpu.benchmark.sampler/1",
        "goal_share_of_a_core": GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
        "ways": found,
    }
    text = json.dumps(document, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    worst = max(one["share_of_a_core"] for one in found.values())
    sys.exit(0 if worst < GOAL else 1)


if __name__ == "__main__":
    main()
