"""What `slurmgpu train --estimate` says a rank keeps at its peak, against what processes on this machine kept.

    python benchmarks/estimate.py [--only NAME] [--json benchmarks/results/estimate.json]

A GPT-2 of eight layers (27 million parameters) is trained for two steps by each strategy, by gloo processes on the CPU. What is
measured is the resident memory of each process: the most of it in the second step (the first makes the optimizer's state),
less what it was before the model was made. A first training of the same processes is not counted: torch loads what it needs
in it. Work spaces of kernels and gloo's buffers count, and what a process maps and does not touch does not. The largest of all
processes is held against the estimate. It is no GPU's memory: a GPU's allocator keeps blocks, and its kernels other work
spaces.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from slurmgpu import __version__
from slurmgpu.training.settings import SCHEMA
from slurmgpu.training.tasks import gpt2

ROOT = Path(__file__).resolve().parents[1]
SIZE = gpt2.Size(8, 8, 512, 32, 2048)
STEPS = 2
_FIRST = "not counted"
WINDOWS = 4  # that a process takes at a time, where the case does not say


def case(
    processes: int, strategy: str, at_once: int = WINDOWS, rounds: int = 1, **more: Any
) -> dict[str, Any]:
    """The settings of a training that takes so many windows at a time, and so many times before a step."""
    share = more.get("tensor_parallel", 1) * (
        more.get("pipeline_stages", processes) if strategy == "pipeline" else 1
    )
    batch = at_once * rounds * max(1, processes // share)
    return {
        "processes": processes,
        "settings": {"strategy": strategy, "batch_size": batch, "accumulate": rounds, **more},
    }


CASES: dict[str, dict[str, Any]] = {
    "1 process, 4 at a time": case(1, "single"),
    "1 process, 16 at a time": case(1, "single", 16),
    "ddp on 2": case(2, "ddp"),
    "fsdp2 on 2": case(2, "fsdp2"),
    "fsdp2 on 2, nothing given back": case(2, "fsdp2", reshard_after_forward=False),
    "layers split over 2": case(2, "fsdp2", tensor_parallel=2),
    "2 stages, 1f1b": case(2, "pipeline", rounds=4),
    "2 stages, gpipe": case(2, "pipeline", rounds=4, pipeline_schedule="gpipe"),
    "ddp on 4": case(4, "ddp"),
    "fsdp2 on 4": case(4, "fsdp2"),
    "fsdp2 of 2 x layers split over 2": case(4, "fsdp2", tensor_parallel=2),
    "4 stages, 1f1b": case(4, "pipeline", rounds=4),
    "2 copies of 2 stages, 1f1b": case(4, "pipeline", rounds=4, pipeline_stages=2),
}


def status(name: str) -> int:
    """Bytes that Linux says this process has (proc_pid_status(5))."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


class Measured(gpt2.Task):
    """GPT-2, which writes down how much memory its process had."""

    calls = base = 0

    def model(self, cfg: Any) -> nn.Module:
        """What there is before it does not count."""
        gc.collect()
        self.base, self.rounds = status("VmRSS"), cfg.accumulate * cfg.stages_each
        return super().model(cfg)

    def _size(self, chosen: Any) -> gpt2.Size:
        return SIZE

    def dataset(self, cfg: Any, split: str) -> object | None:
        """Windows to learn from; nothing is evaluated."""
        return super().dataset(cfg, split) if split == "train" else None

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """The peak begins anew with the second step."""
        if self.calls == self.rounds:
            Path("/proc/self/clear_refs").write_text("5")
        self.calls += 1
        return super().loss(model, batch)

    def on_step_end(self, model: nn.Module, step: int) -> None:
        """The second step is through."""
        if step == STEPS:
            peak = status("VmHWM") - self.base
            Path(os.environ["SLURMGPU_RUN_DIR"], f"peak-{os.getpid()}").write_text(str(peak))


def settings_of(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "task": f"{Path(__file__).resolve()}:Measured",
        "device": "cpu",
        "max_steps": STEPS,
        "sanity": False,
        "epochs": 9,
        "workers": 0,
        "config": {"samples": 256, "tied": False},
        **one["settings"],
    }


def train(folders: list[str]) -> None:
    """One process of the trainings in these folders, one after the other."""
    from slurmgpu.training import run
    from slurmgpu.training.processes import group as groups
    from slurmgpu.training.processes.meeting import connect
    from slurmgpu.training.processes.ranks import from_environment
    from slurmgpu.training.settings import load

    ranks = from_environment(os.environ)
    with groups.join(ranks, 1800, "cpu") as group:
        for folder in folders:
            groups.connect = lambda timeout, name=folder: dist.PrefixStore(name, connect(timeout))
            os.environ["SLURMGPU_RUN_DIR"] = folder
            settings = load(Path(folder, "train.json"))
            run.train(settings, Path(folder), groups.Group(ranks, group.device), os.environ)
            sys.modules.pop("estimate", None)


def measured(cases: dict[str, dict[str, Any]], count: int) -> dict[str, int]:
    """The most that one of so many processes kept in each training, in bytes."""
    with tempfile.TemporaryDirectory() as temporary:
        first = next(iter(cases))
        folders = {name: Path(temporary, str(number)) for number, name in enumerate((_FIRST, *cases))}
        for name, folder in folders.items():
            folder.mkdir()
            (folder / "train.json").write_text(json.dumps(settings_of(cases.get(name, cases[first]))))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "SLURM_NTASKS": str(count),
            # What is given back is no longer resident: glibc would keep it for the next who asks.
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "MALLOC_TRIM_THRESHOLD_": "65536",
            "MALLOC_ARENA_MAX": "1",
        }
        command = [sys.executable, __file__, "--train", *map(str, folders.values())]
        started = [
            subprocess.Popen(
                command,
                env={**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]
        said = [each.communicate()[0] for each in started]
        if any(each.returncode for each in started):
            raise SystemExit("\n".join(said))
        return {
            name: max(int(path.read_text()) for path in folder.glob("peak-*"))
            for name, folder in folders.items()
            if name != _FIRST
        }


def estimated(one: dict[str, Any]) -> dict[str, Any]:
    """The row of the estimate for it."""
    from slurmgpu.training.estimating.arithmetic import rows
    from slurmgpu.training.estimating.tracing import trace, trace_split
    from slurmgpu.training.settings import parse
    from slurmgpu.training.task import load

    settings = parse(settings_of(one))
    count, strategy = one["processes"], settings.strategy
    sys.modules.pop("estimate", None)  # the task's file of the row before
    task = load(settings.task)
    facts = trace(task, settings, (count,))
    found = [
        row
        for row in rows(
            facts, settings, (count,), on_gpu=False, own_step=False, split=trace_split(task, settings)[0]
        )
        if (row.strategy, row.cpu_offload, row.tensor_parallel) == (strategy, False, settings.tensor_parallel)
    ]
    (row,) = found
    return row._asdict()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="cases with this in their name; other rows stay")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "estimate.json")
    parser.add_argument("--train", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train)
        return
    wanted = {name: one for name, one in CASES.items() if given.only is None or given.only in name}
    known = json.loads(given.json.read_text())["cases"] if given.json.exists() else {}
    for count in sorted({one["processes"] for one in wanted.values()}):
        cases = {name: one for name, one in wanted.items() if one["processes"] == count}
        for name, peak in measured(cases, count).items():
            row = estimated(cases[name])
            known[name] = {**cases[name], "estimate": row, "measured": peak}
            known[name]["ratio"] = round(peak / row["total"], 3)
            known[name]["more_mib"] = round((peak - row["total"]) / (1 << 20), 1)
            print(f"{name}: {row['total'] >> 20} MiB estimated, {peak >> 20} MiB measured", flush=True)
        write(given.json, known)


def write(path: Path, known: dict[str, Any]) -> None:
    """The rows, with what they are."""
    ratios = [each["ratio"] for each in known.values()]
    document = {
        "slurmgpu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, no GPU",
        "what": "bytes: resident memory of the largest process at the peak of its second step, less what it was before the "
        f"model was made; GPT-2 of {SIZE.layers} layers, {SIZE.width} wide, windows of {SIZE.context} tokens, fp32, AdamW",
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
        "cases": {each: known[each] for each in CASES if each in known},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
