"""Measures what a file asks for, ``python -m slurmgpu_training.benching [ASKED.json RESULTS.jsonl]``, a row at a time.

Without arguments: asked.json and rows.jsonl in the run directory, which SLURMGPU_RUN_DIR names.

The first row says what machine it is, the last one ``{"kind": "end"}``: without it, the measuring was cut short.

    {"kind": "networks", "networks": ["FCN-S"], "threads": [1, 2], "gpus": [0], "precisions": ["fp32", "tf32"],
     "seconds": 5.0}
    {"kind": "node", "folders": ["/scratch/me"], "nodes": 1}
    {"kind": "task", "train": {"task": "task.py:Digits"}, "folder": "/home/me", "samples": 32, "batch": 64, "processes": [1, 2],
     "parts": ["batch", "workers", "precision", "scaling"], "seconds": 8.0, "nodes": 1}

``gpu_types``, what the cluster's profile says of its GPUs, goes into the first row as it is.

No networks: all of them. No threads: 1, 2, 4 and so on up to the CPUs. No GPUs, as null: all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit(f"slurmgpu: error: {sys.executable} has no torch, with which a bench measures")

from ..formats.run_files import BENCH_SCHEMA
from ..precision import can_bf16
from . import node
from .networks import NETWORKS, step_times
from .starting import Place, end_with_parent
from .task import tries
from .timing import Pace, cpus, doubled, machine_facts

__all__ = ["main"]

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str]) -> None:
    """Measure; each row is in the file as soon as it is known."""
    for number in _ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _ended)
    if arguments:  # otherwise it is Slurm that ends what it has started
        end_with_parent(signal.SIGTERM)
    run_dir = Path(os.environ.get("SLURMGPU_RUN_DIR", "."))
    given, found = arguments or (run_dir / "asked.json", run_dir / "rows.jsonl")
    asked = json.loads(Path(given).read_text(encoding="utf-8"))
    with Path(found).open("a", encoding="utf-8") as file:

        def write(row: Mapping[str, Any]) -> None:
            file.write(json.dumps({"schema": BENCH_SCHEMA, **row}) + "\n")
            file.flush()

        told = {"gpu_types": asked["gpu_types"]} if "gpu_types" in asked else {}
        write({"kind": "machine", **machine_facts(), **told})
        for row in _MEASURES[asked["kind"]](asked):
            write({"kind": asked["kind"], **row})
        write({"kind": "end"})
        _say("")


def _ended(number: int, _frame: object) -> None:
    """End without a traceback, after what is running has been ended and its files are removed; once is enough."""
    for one in _ENDS:
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _networks(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pace = Pace(seconds=asked["seconds"])
    threads_of_each = asked["threads"] or doubled(cpus())
    gpus = range(torch.cuda.device_count()) if asked["gpus"] is None else asked["gpus"]
    if not gpus and (left := [one for one in asked["precisions"] if one != "fp32"]):
        print(f"note: {', '.join(left)}: on the CPU, networks are measured in fp32 alone", file=sys.stderr)
    for name in asked["networks"] or NETWORKS:
        for threads in threads_of_each:
            if threads > cpus():
                why = f"only {cpus()} CPU{'' if cpus() == 1 else 's'}"
                yield {
                    "network": name,
                    "device": "cpu",
                    "threads": threads,
                    "why": why,
                    "batch": NETWORKS[name].batch,
                }
                continue
            _say(f"{name} on {threads} thread{'' if threads == 1 else 's'}")
            torch.set_num_threads(threads)
            found = step_times(name, torch.device("cpu"), "fp32", False, pace)
            yield {"network": name, "device": "cpu", "threads": threads, "precision": "fp32", **found}
        for number in gpus:
            device = torch.device("cuda", number)
            torch.cuda.set_device(device)
            for precision in asked["precisions"]:
                gpu = torch.cuda.get_device_name(device)
                about = {"network": name, "device": gpu, "gpu": number, "precision": precision}
                if precision == "bf16" and not can_bf16(device):
                    yield {**about, "why": "this GPU does not compute in bf16", "batch": NETWORKS[name].batch}
                    continue
                _say(f"{name} on GPU {number}, {precision}")
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
                kind = "fp32" if precision == "tf32" else precision
                found = step_times(name, device, kind, precision == "tf32", pace)
                yield {**about, **found}


def _say(what: str) -> None:
    """Say what is measured now: on a terminal in one line, which the next one takes the place of."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        text = f"slurmgpu: {what} ..."[: columns - 1] if what else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif what:
        print(f"slurmgpu: {what} ...", file=sys.stderr, flush=True)


def _node(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(cpus())
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    for device in gpus or [torch.device("cpu")]:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        _say(f"matrix products and copies of {device}")
        yield from node.products(device)
        yield from node.copies(device, [each for each in gpus if each != device])
    nodes: int = asked.get("nodes") or 1
    each = len(gpus) or min(2, cpus())
    places = [Place(Path.cwd(), each)] if each > 1 else []
    if nodes > 1:
        places += [Place(Path.cwd(), each * nodes, nodes, suffix=asked.get("suffix") or "")]
    for place in places:
        _say(f"sums over {place.processes} processes{'' if place.nodes == 1 else f' on {nodes} nodes'}")
        yield from node.measure_sums(place)
    for folder in asked["folders"]:
        _say(folder)
        yield node.folder(folder)


def _task(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from tries(asked, _say)


_MEASURES = {"networks": _networks, "node": _node, "task": _task}

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as failed:  # a full disk, say
        sys.exit(f"slurmgpu: error: {failed}")
