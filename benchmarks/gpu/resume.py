"""An exact resume on a GPU: killed in the middle, started again, every loss and parameter to the last bit.

    python benchmarks/gpu/resume.py [--tiny] [--json FILE]

In deterministic mode, with dropout and accumulation, in fp32, bf16 and fp16 (the scaler starts so high that its first
steps overflow). Each training is a process of its own, started by ``python -m slurmgpu.training``; it is ended by
SIGKILL between two checkpoints, or by SIGTERM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
import torch

STEPS, KILL_AT_STEP, EVERY = 24, 15, 6


def start(folder: Path, kill: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "SLURMGPU_RUN_DIR": str(folder), "PYTHONPATH": str(common.ROOT)}
    environment |= {"GPU_KILL": kill} if kill else {}
    command = [sys.executable, "-m", "slurmgpu.training"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def wait(started: subprocess.Popen[str], expected: int) -> None:
    """Let it end; SystemExit with what it said when it ended in another way."""
    try:
        _, said = started.communicate(timeout=300)
    finally:
        started.kill()
    if started.returncode != expected:
        raise SystemExit(f"the training ended with {started.returncode}, not {expected}: {said}")


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(
        folder / "checkpoints" / f"step-{STEPS}" / "model.pt", map_location="cpu", weights_only=True
    )
    return found


def compare(folder: Path, document: dict[str, Any], signal: str) -> dict[str, Any]:
    runs = folder / "undisturbed", folder / "killed"
    for run in runs:
        run.mkdir(parents=True)
        (run / "train.json").write_text(json.dumps(document))
    # The hook is called once for each of the two micro-batches of a step. Both at once: starting takes longest.
    first, killed = start(runs[0]), start(runs[1], f"{2 * KILL_AT_STEP - 1}:{signal}")
    wait(killed, {"SIGKILL": -9, "SIGTERM": 75}[signal])
    wait(start(runs[1]), 0)
    wait(first, 0)
    wanted, found = (common.losses(run) for run in runs)
    one, other = (parameters(run) for run in runs)
    lines = map(json.loads, (runs[1] / "metrics.jsonl").read_text().splitlines())
    resumed = [line["values"]["resumed_from"] for line in lines if line["kind"] == "start"][-1]
    different = [step for step in wanted if found.get(step) != wanted[step]]
    unequal = [name for name in one if not torch.equal(one[name], other[name])]
    return {
        "steps": len(wanted),
        "resumed_from": resumed,
        "steps_with_another_loss": different,
        "parameters_that_differ": unequal,
        "exact": bool(resumed) and not different and not unequal and len(wanted) == STEPS,
        "last_loss": wanted[STEPS],
    }


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    config = {**(common.TINY if tiny else common.SMALL), "dropout": 0.1, "samples": 96}
    values = {
        "batch_size": 16,
        "accumulate": 2,
        "max_steps": STEPS,
        "checkpoint_steps": EVERY,
        "log_every": 1,
    }
    values |= {"deterministic": True, "schedule": "cosine", "warmup_steps": 4}
    cases = [("fp32", "SIGKILL"), ("bf16", "SIGTERM"), ("fp16", "SIGKILL")]
    if tiny:  # each is three processes: the one that has most to bring back
        cases = [("fp16" if hasattr(torch.amp, "GradScaler") else "fp32", "SIGKILL")]
    result: dict[str, Any] = {"left_out": []}
    for precision, signal in cases:
        if precision == "fp16" and not (torch.cuda.is_available() or hasattr(torch.amp, "GradScaler")):
            result["left_out"].append("fp16: on the CPU it needs torch 2.3 or newer")
            continue
        document = common.settings("Tokens", config, precision=precision, init_scale=2.0**22, **values)
        name = f"{precision}-{signal}"
        result[name] = compare(folder / name, document, signal)
    result["exact"] = all(each["exact"] for each in result.values() if isinstance(each, dict))
    return result


if __name__ == "__main__":
    common.main(__doc__, measure)
