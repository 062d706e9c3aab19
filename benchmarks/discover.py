"""`slurmgpu cluster discover` on sandboxes of many nodes: the whole process, its commands, and Slurm's share.

    python benchmarks/discover.py [--nodes 100 1000 10000] [--rounds N] [--json FILE]

Starts a twin of a made-up cluster of so many nodes with Slurm's packages as installed here, and ends it again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOAL_NODES, GOAL_SECONDS, GOAL_CALLS = 100, 2.0, 10
SLURMGPU = [sys.executable, "-m", "slurmgpu"]
NAME = "benchmark-discover"
# A fifth of the nodes each: two types of GPU, large memory, many GPUs, and none.
PROFILE = """\
name: many
partitions:
  gpu:
    limits: {{max_time: "2-00:00:00", default_time: "01:00:00", max_nodes: 16}}
    nodes:
      - {{count: {fifth}, gpus: 4, gpu_type: a100, cpus: 64, memory: 500G, features: [nvlink, 80gb]}}
      - {{count: {fifth}, gpus: 8, gpu_type: a30, cpus: 96, memory: 750G}}
  large:
    limits: {{max_time: "1-00:00:00"}}
    nodes: [{{count: {fifth}, cpus: 128, memory: 2000G, features: [genoa]}}]
  cpu:
    limits: {{max_time: "7-00:00:00"}}
    nodes: [{{count: {fifth}, cpus: 128, memory: 250G}}, {{count: {fifth}, cpus: 64, memory: 120G}}]
"""


def run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done


def measure(nodes: int, rounds: int, env: dict[str, str], folder: Path) -> dict[str, float]:
    """Median and range of whole processes, the number of commands, and the time Slurm took for them."""
    profile = folder / "many.yaml"
    profile.write_text(PROFILE.format(fifth=nodes // 5))
    run([*SLURMGPU, "sandbox", "up", "--name", NAME, "--like", str(profile)], env)
    try:
        inside = [*SLURMGPU, "sandbox", "exec", "--name", NAME, "--"]
        # Asked for inside, and measured without the command that asks for it.
        printed = run([*inside, "env", "-0"], env).stdout
        shell = dict(entry.split("=", 1) for entry in printed.split("\0") if "=" in entry)
        times, slurm = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            found = json.loads(run([*SLURMGPU, "cluster", "discover", "--json"], shell).stdout)
            times.append(time.perf_counter() - start)
            slurm.append(found["seconds"])
        groups = [group for part in found["cluster"]["partitions"].values() for group in part["nodes"]]
        assert sum(group["count"] for group in groups) == nodes, groups
        return {
            "median_seconds": round(statistics.median(times), 3),
            "max_seconds": round(max(times), 3),
            "slurm_median_seconds": round(statistics.median(slurm), 3),
            "calls": found["calls"],
        }
    finally:
        run([*SLURMGPU, "sandbox", "down", NAME], env)


def main() -> None:
    """Measure, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": folder,
            "XDG_STATE_HOME": folder,
            "SLURMGPU_SITE": folder,
        }
        for nodes in options.nodes:
            found = results[f"{nodes} nodes"] = measure(nodes, options.rounds, env, Path(folder))
            goal = f" (goal: {GOAL_SECONDS} s, {GOAL_CALLS})" if nodes == GOAL_NODES else ""
            print(
                f"{nodes} nodes: {found['median_seconds']:.2f} s, at most {found['max_seconds']:.2f} s, of which Slurm "
                f"{found['slurm_median_seconds']:.2f} s for {found['calls']:.0f} commands{goal}"
            )
    if options.json:
        about = {
            "schema": "slurmgpu.benchmark/1",
            "benchmark": "discover",
            "rounds": options.rounds,
            "python": platform.python_version(),
            "slurm": subprocess.run(["sinfo", "-V"], capture_output=True, text=True).stdout.strip(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "results": results,
        }
        options.json.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
