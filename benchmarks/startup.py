"""Start-up time of the command line against importing its libraries, in turns, as whole processes.

    python benchmarks/startup.py [--rounds N] [--json FILE]

Prints the median of the ratios round by round, which hold when the machine's speed drifts; `--json` keeps them
with the versions and the kind of machine.
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
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = ["--gpus", "2", "-t", "1:00:00", "--", "python", "train.py"]
BASELINE = [sys.executable, "-c", "import click, pydantic, jinja2"]
SLURMGPU = [sys.executable, "-c", "from slurmgpu.cli import main; main()"]
FILES = [str(ROOT / "jobs" / "uva-pytorch.yaml"), "--cluster", "uva-afton"]
MEASURED = {
    "--help": [*SLURMGPU, "--help"],
    "render": [*SLURMGPU, "render", *JOB],
    "render digits": [*SLURMGPU, "render", str(ROOT / "examples" / "digits" / "job.yaml")],
    "render FILE --cluster": [*SLURMGPU, "render", *FILES],
    "plan": [*SLURMGPU, "plan", *JOB],
    "plan --cluster": [*SLURMGPU, "plan", "--cluster", "uva-afton", "-A", "mygroup", *JOB],
}
GOALS = {"--help": 1.5, "render": 2.0, "plan --cluster": 2.5}


def seconds(command: list[str], cwd: str) -> float:
    """Wall time of one whole process; its output is thrown away, a failure is an error."""
    start = time.perf_counter()
    subprocess.run(
        command,
        cwd=cwd,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(cwd),
    )
    return time.perf_counter() - start


def environment(cwd: str) -> dict[str, str]:
    """No settings of the user's, and this checkout's slurmgpu, compiled once as an installed one is."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    here = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": cwd, "SLURMGPU_SITE": cwd}
    return {**kept, **here, "PYTHONPYCACHEPREFIX": f"{cwd}/bytecode"}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Ratios to the baseline of the same round, after one round that fills the caches."""
    ratios: dict[str, list[float]] = {name: [] for name in MEASURED}
    baselines: list[float] = []
    with tempfile.TemporaryDirectory() as cwd:
        for number in range(rounds + 1):
            base = seconds(BASELINE, cwd)
            times = {name: seconds(command, cwd) for name, command in MEASURED.items()}
            if number:
                baselines.append(base)
                for name, taken in times.items():
                    ratios[name].append(taken / base)
    result = {"baseline": {"median_seconds": round(statistics.median(baselines), 4)}}
    for name, values in ratios.items():
        result[name] = {
            "median_ratio": round(statistics.median(values), 3),
            "min_ratio": round(min(values), 3),
            "max_ratio": round(max(values), 3),
        }
    return result


def main() -> None:
    """Measure, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options.rounds)
    print(f"baseline: import click, pydantic, jinja2: {result['baseline']['median_seconds'] * 1000:.0f} ms")
    for name in MEASURED:
        goal = f" (goal: at most {GOALS[name]})" if name in GOALS else ""
        figures = result[name]
        print(
            f"{name}: {figures['median_ratio']:.2f} x [{figures['min_ratio']:.2f} .. {figures['max_ratio']:.2f}]{goal}"
        )
    if options.json:
        packages = {name: version(name) for name in ("click", "pydantic", "jinja2", "ruamel.yaml")}
        about = {
            "schema": "slurmgpu.benchmark/1",
            "benchmark": "startup",
            "rounds": options.rounds,
            "python": platform.python_version(),
            "packages": packages,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "results": result,
        }
        options.json.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
