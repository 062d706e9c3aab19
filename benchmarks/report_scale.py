"""What `slurmgpu report` costs this machine, by the number of jobs, beside reportseff on the same rows.

    python benchmarks/report_scale.py [--sizes 1000,10000,100000] [--rounds N] [--reportseff PROGRAM] [--json FILE]

A sacct that prints rows of so many jobs at once, each with three steps, in whatever format it is asked for: what is measured
is the reading and the arithmetic. Medians of whole processes. reportseff is an environment's of its own: pip install
reportseff.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.status_scale import SEPARATOR, environment, once, program, several  # noqa: E402

REPORT = [sys.executable, "-m", "slurmgpu", "report", "--all-users", "--since", "30d"]
BEGIN = 1795233801
LEARN = """#!/bin/sh
case "$*" in *--helpformat*) echo {names}; exit 0 ;; esac
printf '%s\\n' "$@" > {asked}
"""
SACCT = """#!/bin/sh
case "$*" in *--helpformat*) echo {names}; exit 0 ;; esac
echo sacct >> {calls}
for word; do case $word in --delimiter=*) separator=${{word#--delimiter=}} ;; esac; done
exec sed "s/{sep}/$separator/g" {rows}
"""
SCONTROL = """#!/bin/sh
echo scontrol >> {calls}
echo 'JobAcctGatherFrequency  = 30'
echo 'JobAcctGatherType       = jobacct_gather/cgroup'
"""
NAMES = (
    "JobIDRaw JobID State Elapsed TotalCPU AllocCPUS REQMEM NNodes MaxRSS Timelimit AdminComment NTasks Partition "
    "JobName Submit Start End"
)


def jobs(size: int) -> Iterator[dict[str, str]]:
    """Rows of so many jobs that have ended, each with its batch script, its extern step and one srun."""
    dice = random.Random(size)
    for number in range(1, size + 1):
        seconds, cpus, gpus = (
            dice.randrange(60, 86400),
            dice.choice((4, 8, 16, 32)),
            dice.choice((0, 1, 2, 4)),
        )
        begin = BEGIN + number * 7
        state = dice.choices(
            ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 1000", "OUT_OF_MEMORY"), (80, 8, 6, 4, 2)
        )[0]
        tres = f"billing={cpus},cpu={cpus},mem={cpus * 4}G,node=1" + (
            f",gres/gpu={gpus},gres/gpu:a100={gpus}" if gpus else ""
        )
        job = {
            "JobID": f"{number}", "JobIDRaw": f"{number}", "Cluster": "recorded", "User": f"user{dice.randrange(40)}",
            "Account": f"lab{dice.randrange(8)}", "Partition": dice.choice(("gpu", "cpu", "long")), "QOS": "normal",
            "State": state, "ExitCode": "1:0" if state == "FAILED" else "0:0", "DerivedExitCode": "0:0",
            "Submit": f"{begin - 600}", "Start": f"{begin}", "End": f"{begin + seconds}", "ElapsedRaw": f"{seconds}",
            "Elapsed": clock(seconds), "TimelimitRaw": "1440", "Timelimit": "1-00:00:00", "NNodes": "1",
            "NCPUS": f"{cpus}", "AllocCPUS": f"{cpus}", "AllocTRES": tres, "ReqTRES": tres, "ReqMem": f"{cpus * 4}G",
            "REQMEM": f"{cpus * 4}G", "NodeList": f"node{number % 90 + 10:03}", "Reason": "None", "JobName": f"train-{number}-é",
            "WorkDir": "/scratch/ada/project", "TotalCPU": clock(int(seconds * cpus * dice.random())),
            "ConsumedEnergyRaw": "0",
        }  # fmt: skip
        yield job
        for step in ("batch", "extern", "0"):
            used = dice.randrange(1 << 20, cpus << 22)
            yield job | {
                "JobID": f"{number}.{step}", "JobIDRaw": f"{number}.{step}", "User": "", "Partition": "", "QOS": "",
                "JobName": step, "NTasks": "1", "MaxRSS": f"{used}K", "AveRSS": f"{used}K", "MaxRSSNode": "node010",
                "TotalCPU": clock(int(seconds * dice.random())), "TRESUsageInMax": f"cpu=00:10:00,mem={used}K",
                "TRESUsageInTot": f"cpu=00:10:00,mem={used}K",
            }  # fmt: skip


def clock(seconds: int) -> str:
    """As sacct writes it."""
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def answering(place: Path, argv: Sequence[str], size: int) -> dict[str, str]:
    """An environment whose sacct prints rows of so many jobs, as this command asks for them."""
    (place / "bin").mkdir(parents=True)
    calls, asked, rows = place / "calls", place / "asked", place / "rows"
    program(place / "bin" / "scontrol", SCONTROL.format(calls=calls))
    program(place / "bin" / "sacct", LEARN.format(asked=asked, names=NAMES))
    env = environment(place, f"{place / 'bin'}:{os.environ['PATH']}")
    calls.write_text("")
    once(argv, env, place / "work")
    asked_for = next(word for word in asked.read_text().split("\n") if word.startswith("--format="))
    fields = asked_for.removeprefix("--format=").split(",")
    with rows.open("w") as file:
        file.writelines(
            "".join(f"{row.get(name, '')}{SEPARATOR}" for name in fields) + "\n" for row in jobs(size)
        )
    program(place / "bin" / "sacct", SACCT.format(calls=calls, sep=SEPARATOR, rows=rows, names=NAMES))
    return env


def measured(folder: Path, size: int, rounds: int, other: str | None) -> dict[str, Any]:
    """What each way costs at this size."""
    ways = {
        "slurmgpu report": REPORT,
        "slurmgpu report --list": [*REPORT, "--list"],
        "slurmgpu report --json": [*REPORT, "--json"],
        "slurmgpu report --html": [*REPORT, "--html", "report.html"],
    }
    if other:
        ways["reportseff --user"] = [other, "--user", "ada", "--no-color"]
    found = {}
    for name, argv in ways.items():
        place = folder / f"{size}-{len(found)}"
        env = answering(place, argv, size)
        found[name] = several(argv, env, place, rounds)
        found[name]["rows_mb"] = round((place / "rows").stat().st_size / 1e6, 1)
        print(size, name, json.dumps(found[name]), flush=True)
        shutil.rmtree(place)
    return found


def version_of(other: str) -> str:
    """What a program says of itself."""
    done = subprocess.run([other, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--reportseff", default=shutil.which("reportseff"), help="the program (default: on PATH, if any)"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as folder:
        sizes = [int(size) for size in given.sizes.split(",")]
        results = {str(size): measured(Path(folder), size, given.rounds, given.reportseff) for size in sizes}
    document = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "report_scale",
        "rounds": given.rounds,
        "machine": {
            "machine": platform.machine(), "cpus": os.cpu_count(), "load_before": load, "python": platform.python_version(),
        },
        "versions": {"reportseff": version_of(given.reportseff) if given.reportseff else None},
        "rows_of_a_job": 4,
        "results": results,
    }  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
