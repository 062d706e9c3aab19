"""One training killed six times, beside the same one left alone: every loss must be the same, to the last bit.

    python benchmarks/killed_run.py [--json FILE]

The task is the language model of the examples, smaller, with two processes on this machine's CPU and a checkpoint every
50 steps. A signal goes to one rank or to both as soon as metrics.jsonl shows a step. ``soak.py`` does this hundreds of
times at random; this one keeps the curves, for the picture in the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "schema": "slurmgpu.train/1",
    "task": f"{ROOT}/examples/language_model/task.py:LanguageModel",
    "epochs": 6,
    "max_steps": 600,
    "batch_size": 16,
    "lr": 0.003,
    "schedule": "cosine",
    "clip_norm": 1.0,
    "log_every": 5,
    "checkpoint_steps": 50,
    "config": {
        "text": "/usr/share/common-licenses/*",
        "context": 128,
        "width": 64,
        "layers": 2,
        "heads": 4,
        "dropout": 0.1,
    },
}
DISTURBANCES = [
    (80, signal.SIGKILL, "one rank"),
    (150, signal.SIGTERM, "one rank"),
    (240, signal.SIGKILL, "both ranks"),
    (330, signal.SIGUSR1, "both ranks"),
    (420, signal.SIGKILL, "one rank"),
    (510, signal.SIGTERM, "both ranks"),
]
SAVED = 75  # the exit code of a rank that was stopped and has saved everything
PATIENCE = 600.0  # seconds for a start to come to an end


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's metrics; the last one may be under way."""
    path = run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def start(run_dir: Path) -> list[subprocess.Popen[bytes]]:
    """Two ranks, as srun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RANK"))}
    common = {"SLURMGPU_RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SLURM_NTASKS": "2"}
    command = [sys.executable, "-m", "slurmgpu.training"]
    log = (run_dir / "log").open("ab")
    ranks = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in (0, 1)]
    return [
        subprocess.Popen(command, env=inherited | common | rank, stdout=log, stderr=log) for rank in ranks
    ]


def disturb(run_dir: Path, ranks: list[subprocess.Popen[bytes]], number: signal.Signals, whom: str) -> None:
    for process in ranks if whom == "both ranks" else ranks[1:]:
        process.send_signal(number)
    codes = [process.wait(timeout=PATIENCE) for process in ranks]
    wanted = [SAVED, SAVED] if number != signal.SIGKILL else None
    if (wanted and codes != wanted) or 0 in codes:
        raise SystemExit(
            f"{number.name} to {whom}: the ranks ended with {codes}\n{(run_dir / 'log').read_text()}"
        )


def train(run_dir: Path, disturbances: list[tuple[int, signal.Signals, str]]) -> list[dict[str, Any]]:
    """Train to the end, through the disturbances; returns what each of them did."""
    run_dir.mkdir(parents=True)
    settings = {**SETTINGS, "config": {**SETTINGS["config"], "data": str(run_dir.parent / "text.json")}}  # type: ignore[dict-item]
    (run_dir / "train.json").write_text(json.dumps(settings))
    done: list[dict[str, Any]] = []
    for step, number, whom in disturbances:
        ranks, until = start(run_dir), time.monotonic() + PATIENCE
        while not any(line["kind"] == "train" and line["step"] >= step for line in lines_of(run_dir)):
            if time.monotonic() > until or any(process.poll() is not None for process in ranks):
                raise SystemExit(f"it never came to step {step}\n{(run_dir / 'log').read_text()}")
            time.sleep(0.02)
        disturb(run_dir, ranks, number, whom)
        seen = max(line["step"] for line in lines_of(run_dir))
        done.append({"signal": number.name, "to": whom, "last_step_seen": seen})
    for process in start(run_dir):
        if process.wait(timeout=PATIENCE):
            raise SystemExit((run_dir / "log").read_text())
    starts = [line["step"] for line in lines_of(run_dir) if line["kind"] == "start"][1:]
    return [{**each, "went_on_from": step} for each, step in zip(done, starts, strict=True)]


def curve(run_dir: Path, kind: str) -> list[tuple[int, int, float]]:
    """Start, step and loss of each line, those included that a later start wrote again."""
    lines = [line for line in lines_of(run_dir) if line["kind"] == kind]
    return [(line["restart"], line["step"], line["values"]["loss"]) for line in lines]


def differences(one: Path, other: Path) -> list[str]:
    """Where two runs differ by so much as a bit."""
    found = []
    for kind in ("train", "eval"):
        expected = {step: loss for _, step, loss in curve(one, kind)}
        seen = curve(other, kind)
        found += [
            f"{kind} loss at step {step}" for _, step, loss in seen if loss.hex() != expected[step].hex()
        ]
        found += [
            f"{kind} loss at step {step} is missing" for step in expected.keys() - {s for _, s, _ in seen}
        ]
    last = max(step for _, step, _ in curve(one, "train"))
    models = [
        torch.load(run / "checkpoints" / f"step-{last}" / "model.pt", weights_only=True)
        for run in (one, other)
    ]
    found += [f"parameter {name}" for name in models[0] if not torch.equal(models[0][name], models[1][name])]
    return found


def main() -> None:
    """Train both, compare them, and keep the curves when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        alone, killed = Path(temporary, "alone"), Path(temporary, "killed")
        train(alone, [])
        done = train(killed, DISTURBANCES)
        different = differences(alone, killed)
        curves = {"alone": curve(alone, "train"), "killed": curve(killed, "train")}
    for each in done:
        print("{signal} to {to} after step {last_step_seen}: went on from {went_on_from}".format(**each))
    print(f"different from the run left alone: {', '.join(different) or 'nothing'}")
    if given.json:
        machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}
        setting = {**SETTINGS, "task": "examples/language_model/task.py:LanguageModel"}
        document = {"schema": "slurmgpu.benchmark/1", "benchmark": "killed_run", "setting": setting}
        document |= {"machine": machine, "versions": {"torch": torch.__version__}}
        document |= {"results": {"disturbances": done, "differences": different, "curves": curves}}
        given.json.write_text(json.dumps(document) + "\n")
    if different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
