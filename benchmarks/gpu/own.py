"""A loop of one's own with DDP, as docs/own-script.md has it: killed, stopped, and gone on with, to the last bit.

    python benchmarks/gpu/own.py [--tiny] [--json FILE]

``examples/own_loop/ddp.py`` under torchrun, with nccl: two processes on two GPUs, else one on one. A copy of the script
ends itself by SIGKILL, and then by SIGTERM; its last parameters are held against those of an undisturbed run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
import torch

EPOCHS, STEPS = 2, 100
SCRIPT = common.ROOT / "examples" / "own_loop" / "ddp.py"
# The step at which the script signals itself: between two checkpoints, which are 20 steps apart.
ENDS = {"SIGKILL": 33, "SIGTERM": 71}


def script(folder: Path) -> Path:
    """The example, shorter, with more checkpoints, and with an end when the environment asks for one."""
    text = SCRIPT.read_text()
    end = (
        "    name, _, at = os.environ.get('GPU_KILL', '').partition(':')\n"
        "    if at and run.step == int(at):\n"
        "        import signal\n"
        "        os.kill(os.getpid(), getattr(signal, name))\n"
    )
    for old, new in {
        "epochs=20": f"epochs={EPOCHS}",
        "save_every=100": "save_every=20",
        "    loss.backward()": f"{end}    loss.backward()",
        "run.save()\n": "run.save()\nprint('device', run.device.type, 'backend', dist.get_backend())\n",
    }.items():
        if old not in text:
            raise SystemExit(f"{SCRIPT} has no {old!r} any more")
        text = text.replace(old, new)
    path = folder / "ddp.py"
    path.write_text(text)
    return path


def train(path: Path, run: Path, processes: int, end: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "SLURMGPU_RUN_DIR": str(run),
        "PYTHONPATH": str(common.ROOT),
        "GPU_KILL": end,
    }
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launch, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=140)


def newest(run: Path) -> int:
    return max(
        (int(file.parent.name[5:]) for file in run.glob("checkpoints/step-*/manifest.json")), default=0
    )


def parameters(run: Path) -> dict[str, torch.Tensor]:
    path = run / "checkpoints" / f"step-{STEPS}" / "state.pt"
    found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return found


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    processes = min(2, torch.cuda.device_count()) if torch.cuda.is_available() else 1 if tiny else 2
    path = script(folder)
    straight, cut = folder / "straight", folder / "cut"
    undisturbed = train(path, straight, processes)
    if undisturbed.returncode:
        raise SystemExit(f"the undisturbed run failed: {undisturbed.stderr}")
    resumed = [0]
    for name, step in list(ENDS.items())[: 1 if tiny else None]:
        if train(path, cut, processes, f"{name}:{step}").returncode == 0:
            raise SystemExit(f"{name} at step {step} did not end the run")
        resumed.append(newest(cut))
    last = train(path, cut, processes)
    if last.returncode:
        raise SystemExit(f"it did not go on: {last.stderr}")
    one, other = parameters(straight), parameters(cut)
    unequal = [name for name in one if not torch.equal(one[name], other[name])]
    said = next(line for line in undisturbed.stdout.splitlines() if line.startswith("device"))
    return {
        "processes": processes,
        "said": said,
        "went_on_from": resumed[1:],
        "parameters_that_differ": unequal,
        "exact": not unequal and resumed == sorted({*resumed}) and resumed[-1] < STEPS,
    }


if __name__ == "__main__":
    common.main(__doc__, measure)
