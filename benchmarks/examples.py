"""What the examples reach: digits and the language model, by ``slurmgpu run``, each with several seeds.

    python benchmarks/examples.py [--seeds 0 1 2] [--keep FOLDER] [--json FILE]

Every training is the example's own job file, with two processes on this machine's CPU and one thread each; nothing
but the seed differs from ``slurmgpu run examples/NAME/job.yaml --processes 2``. Needs scikit-learn (for the digits) and
a Debian or Ubuntu (for the licences).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("digits", "language_model")


def train(example: str, seed: int, folder: Path) -> tuple[Path, float]:
    """Train an example in a copy of its folder; returns the run directory and the seconds of CPU it took."""
    work = folder / f"{example}-{seed}"
    ignored = shutil.ignore_patterns("runs", "__pycache__", "*.pt", "text.json")
    shutil.copytree(ROOT / "examples" / example, work, ignore=ignored)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    own = {
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(work / "none"),
        "SLURMGPU_SITE": str(work / "none"),
    }
    command = [sys.executable, "-m", "slurmgpu", "run", "job.yaml", "--here", "--processes", "2"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--set", f"train.seed={seed}"],
        cwd=work,
        env={**inherited, **own, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    print(done.stdout.splitlines()[-1] if done.stdout else "no output", flush=True)
    if done.returncode:
        raise SystemExit(f"{example} with seed {seed} ended with {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (run_dir,) = (work / "runs").iterdir()
    return run_dir, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(run_dir: Path, cpu_seconds: float) -> dict[str, Any]:
    """The last evaluation, and what it took; with nothing else on two CPUs, half of the CPU's seconds."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    start = next(line["values"] for line in lines if line["kind"] == "start")
    end = next(line for line in lines if line["kind"] == "end")
    last = [line["values"] for line in lines if line["kind"] == "eval"][-1]
    values = {name: value for name, value in last.items() if name not in ("epoch", "seconds")}
    values |= {"steps": end["step"], "epochs": end["values"]["epochs"], "seconds": end["values"]["seconds"]}
    return {"seed": start["settings"]["seed"], **values, "cpu_seconds": cpu_seconds}


def curves(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Samples trained on and loss: of the training the mean since the point before, and of the test."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    start = next(line["values"] for line in lines if line["kind"] == "start")
    batch, most = start["settings"]["batch_size"], start["settings"]["epochs"] * start["dataset_samples"]

    def points(kind: str) -> list[tuple[int, float]]:
        found = [line for line in lines if line["kind"] == kind]
        return [(min(line["step"] * batch, most), round(line["values"]["loss"], 4)) for line in found]

    return {"train": points("train"), "test": points("eval")}


def about_the_text(path: Path) -> dict[str, Any]:
    """What the language model learns, and the loss of one that only knows how frequent each character is."""
    made = json.loads(path.read_text())
    learned, held_out = made["train"], made["test"]
    counts = Counter(learned)
    room = len(learned) + len(made["characters"]) + 1
    single = [-math.log((counts[character] + 1) / room) for character in held_out]
    return {
        "files": [Path(name).name for name in made["files"]],
        "sha256": hashlib.sha256((learned + held_out).encode()).hexdigest(),
        "characters": len(made["characters"]),
        "learned_from": len(learned),
        "held_out": len(held_out),
        "loss_by_frequency_of_characters": statistics.fmean(single),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in runs[0] if name not in ("seed", "steps", "epochs")]
    found: dict[str, Any] = {}
    for name in names:
        values = [run[name] for run in runs]
        found[name] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return found


def keep(path: Path, results: dict[str, Any]) -> None:
    machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}
    document = {"schema": "slurmgpu.benchmark/1", "benchmark": "examples"}
    document |= {"setting": {"processes": 2, "threads": 1}, "machine": machine}
    document |= {"versions": {"torch": torch.__version__}, "results": results}
    path.write_text(json.dumps(document) + "\n")


def main() -> None:
    """Train, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--keep", type=Path, help="a folder that keeps the run directories")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for example in EXAMPLES:
        runs: list[dict[str, Any]] = []
        drawn: list[dict[str, Any]] = []
        for seed in given.seeds:
            run_dir, cpu_seconds = train(example, seed, folder)
            runs.append(measured(run_dir, cpu_seconds))
            drawn.append(curves(run_dir))
            results[example] = {"runs": runs, "summary": summary(runs), "curves": drawn}
            if example == "language_model":
                results[example]["text"] = about_the_text(run_dir.parents[1] / "text.json")
            if given.json:
                keep(given.json, results)  # after each, for the language model takes its time
    if given.keep is None:
        shutil.rmtree(folder)
    print(json.dumps({name: result["summary"] for name, result in results.items()}, indent=1))


if __name__ == "__main__":
    main()
