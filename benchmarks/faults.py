"""Faults between client and controller, on a real Slurm: what slurmgpu then says and does, held against the truth.

    python benchmarks/faults.py [--trials N] [--seed N] [--short] [--json FILE]

Each trial has a proxy of its own before the controller's port, which disturbs this trial's commands alone; the truth is
read past it. A network fault hits the first connections only, or all of them for a while. The controller is restarted
or killed under whole batches, commands get a signal, and the runs lie on a full or a read-only disk where this may mount
one. Beside slurmgpu, under the same faults: sbatch in a retry loop of three tries, submitit, and `sbatch -W`.
Ends with 1 when a promise of slurmgpu was broken.

The commands are forked from a process that has loaded them: thousands of starts take minutes, not hours. A command
gives up after 2 s without a reply.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.faulty.bench import Report, bench_of  # noqa: E402
from benchmarks.faulty.commands import load  # noqa: E402
from benchmarks.faulty.proxy import FORMS, NETWORK  # noqa: E402
from benchmarks.faulty.trials import CONTROLLER, DISKS, READING, SIGNALS, WAITING, WRITING, Cell  # noqa: E402
from benchmarks.mounts import can_mount, restart_with_own_mounts  # noqa: E402
from slurmgpu.sandbox.programs import slurm_version  # noqa: E402

BEGAN = time.monotonic()
ROUNDS = 5
SHORT = {
    Cell("slurmgpu submit", "reply dropped", "always"),
    Cell("slurmgpu submit", "reply held", "first"),
    Cell("slurmgpu submit", "request cut", "first"),
    Cell("slurmgpu submit", "SIGKILL"),
    Cell("slurmgpu submit --wait/--follow", "reset", "first"),
    Cell("slurmgpu status", "hang", "first"),
    Cell("slurmgpu cancel", "reply dropped", "first"),
    Cell("slurmgpu logs", "refused", "always"),
    Cell("sbatch, 3 tries", "reply dropped", "always"),
}


def measure(given: argparse.Namespace, report: Report) -> None:
    """All trials; a fresh Slurm for each few rounds, whose lists of jobs stay short."""
    network = [Cell(c, f, form) for c in (*WRITING, *WAITING, *READING) for f in NETWORK for form in FORMS]
    signals = [Cell(command, number) for command in (*WRITING, *WAITING) for number in SIGNALS]
    disks = [Cell(command, fault) for command in ("slurmgpu submit", "submitit") for fault in DISKS]
    cells = [*network, *signals, *(disks if can_mount() else [])]
    if given.short:
        cells = [cell for cell in cells if cell in SHORT]
    random.Random(given.seed).shuffle(cells)
    for first in range(0, given.trials, ROUNDS):
        with bench_of(given.seed, report) as bench:
            bench.side_by_side(cells, range(first, min(first + ROUNDS, given.trials)))
        print(f"{min(first + ROUNDS, given.trials)} trials of each of {len(cells)} cells", flush=True)
        save(given, report)
    for fault in () if given.short else CONTROLLER:
        with bench_of(given.seed, report) as bench:
            time.sleep(10)  # until the controller has written down the jobs that are read
            for first in range(0, given.trials, 4):
                bench.batch(fault, (*WRITING, *READING), range(first, min(first + 4, given.trials)))
            bench.batch(fault, WAITING, range(given.trials))
        print(f"{fault}: done", flush=True)
        save(given, report)


def save(given: argparse.Namespace, report: Report) -> None:
    """The figures so far, into the file of results."""
    document = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "faults",
        "setting": {"seed": given.seed, "trials": given.trials, "seconds_without_a_reply": 2},
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": [round(each, 1) for each in os.getloadavg()],
            "python": platform.python_version(),
        },
        "versions": {"slurm": slurm_version(), "submitit": version("submitit")},
        "seconds": round(time.monotonic() - BEGAN),
        "results": {
            "disks": "tried" if can_mount() else "skipped: this may not mount a tmpfs",
            "summary": report.summary(),
            "failures": report.failures,
            "cells": report.table(),
        },
    }
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Measure, print, and keep the figures when asked to; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20, help="of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a handful of cells")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    if os.getuid() == 0:
        restart_with_own_mounts()
    load()
    report = Report()
    measure(given, report)
    for name, row in report.summary().items():
        print(f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.items()))
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
