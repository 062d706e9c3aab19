"""What the GPU benchmarks share: the machine, the options, and a training in this process."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TASKS = HERE / "gpu_tasks.py"
for place in (ROOT, HERE.parent, HERE):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
# What CUDA needs for deterministic products is for the entrypoint to set: seen only where nobody else has.
os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)

import gpu_hook  # noqa: E402
import torch  # noqa: E402

if not torch.cuda.is_available():  # only whether it runs: not with more threads than there is room for
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

SMALL = {"vocabulary": 8192, "width": 320, "layers": 6, "heads": 5, "length": 256, "dropout": 0.0}
LARGE = {"vocabulary": 8192, "width": 1024, "layers": 24, "heads": 16, "length": 512, "dropout": 0.0}
TINY = {"vocabulary": 32, "width": 16, "layers": 1, "heads": 2, "length": 8, "dropout": 0.0}


def device() -> torch.device:
    """Where the entrypoint trains when it is alone."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def finish() -> None:
    """Wait until the GPU has done all it was asked to; nothing on the CPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def settings(task: str, config: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A whole ``train.json``, with no checkpoint and no worker unless asked for."""
    plain = {"epochs": 10**6, "workers": 0, "checkpoint_every": 10**6, "hang_timeout": None}
    return {"schema": "slurmgpu.train/1", "task": f"{TASKS}:{task}", **plain, **values, "config": config}


def train_here(
    document: dict[str, Any], folder: Path, at_loss: Callable[[], None] = gpu_hook.nothing
) -> None:
    """Train in this process and thread until the end, or until the hook has had enough; what it says is dropped."""
    from slurmgpu.training.processes.group import join
    from slurmgpu.training.processes.ranks import Ranks
    from slurmgpu.training.settings import parse
    from slurmgpu.training.trainer import train

    folder.mkdir(parents=True, exist_ok=True)
    gpu_hook.at_loss = at_loss
    ends = {"SLURMGPU_END_TIME": str(int(time.time()) + 86400)}
    try:
        with (
            contextlib.suppress(gpu_hook.Enough),
            contextlib.redirect_stdout(io.StringIO()),
            join(Ranks(), 300) as group,
        ):
            train(parse(document), folder, group, ends)
    finally:
        gpu_hook.at_loss = gpu_hook.nothing
        sys.modules.pop(TASKS.stem, None)


def bare_task(name: str) -> Any:
    """The task as a loop of one's own would use it; loaded under another name, for the entrypoint wants its own."""
    spec = importlib.util.spec_from_file_location("bare_tasks", TASKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


class Plain:
    """Settings as attributes, for a task that no entrypoint calls."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def losses(folder: Path) -> dict[int, str]:
    """The hex loss of each step; where a step stands twice, the latest start counts."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    found = [(line["restart"], line) for line in lines if line["kind"] == "train"]
    return {
        line["step"]: float(line["values"]["loss"]).hex() for _, line in sorted(found, key=lambda p: p[0])
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on; what cannot be learned is unknown."""
    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name(0) if on_gpu else "CPU"
    return {
        "device": name,
        "gpus": torch.cuda.device_count() if on_gpu else 0,
        "driver": _driver() if on_gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip() or "unknown"


_kept: Path | None = None


def keep(result: dict[str, Any]) -> None:
    """Write down what is known so far: whoever has too little time for all of it has this."""
    if _kept is not None:
        _kept.write_text(json.dumps({**result, "cut_short": True}, indent=1) + "\n")


def main(doc: str, measure: Callable[[bool, Path], dict[str, Any]]) -> None:
    """The command line of one benchmark: measure in a folder of its own, print, and keep the figures."""
    import shutil
    import tempfile

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU: does it start and end?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    given = parser.parse_args()
    global _kept
    _kept = given.json
    folder = Path(tempfile.mkdtemp(prefix="gpu-benchmark-"))
    began = time.perf_counter()
    try:
        result = {**measure(given.tiny, folder), "seconds": round(time.perf_counter() - began, 1)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(result, indent=1)
    print(text, flush=True)
    if given.json:
        given.json.write_text(text + "\n")
    sys.stderr.flush()
    os._exit(0)  # trainings that never end may still wait in their threads
