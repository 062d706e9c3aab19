"""A node's products, copies, sums over processes and folders, measured.

A sum's rate is the bus bandwidth of NVIDIA's nccl-tests (doc/PERFORMANCE.md there): 2 (n - 1) / n times the bytes of the sum over
its time, which the number of processes leaves as it is where the links are the limit. ``python -m
slurmgpu_training.benching.node`` runs in each process of a sum.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..precision import can_bf16
from ..processes.group import join
from ..processes.ranks import from_environment
from ..watching.gauges import peak_flops
from .starting import Place, end, own_folder, run_folder, start
from .timing import Pace, spread, timed

__all__ = ["copies", "folder", "measure_sums", "products"]


_PACE = Pace(warm_up=3, least=5, most=30, seconds=1.0)
_COPIED = 256 << 20
_WRITTEN = 256 << 20
_SMALL_FILES = 500
# Rows and columns of the matrices: large enough that the processor is the limit.
_SIZE = {"cuda": 8192, "cpu": 2048}
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def products(device: torch.device) -> Iterator[dict[str, Any]]:
    """TFLOP/s of a product of square matrices in each type that the device computes in, beside the published peak."""
    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else "cpu"
    for kind, dtype in _TYPES.items():
        if (kind in ("tf32", "fp16") and not gpu) or (kind == "bf16" and not can_bf16(device)):
            continue
        size = _SIZE[device.type]
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        one, two = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)
        began = time.perf_counter()
        torch.mm(one, two, out=out)
        first = time.perf_counter() - began
        # CPUs that do not know bf16 take a minute for one: that alone tells, and a GPU's first one tells nothing.
        slow = not gpu and first > _PACE.seconds
        rounds = [[first]] if slow else timed([_product(one, two, out)], device, _PACE)
        peak = peak_flops(name, "fp32" if kind == "tf32" else kind, kind == "tf32") if gpu else None
        yield {
            "what": "product", "device": str(device), "type": kind, "size": size,
            "tflops": _rates([laps[0] for laps in rounds], 2 * size**3 / 1e12),
            "peak_tflops": None if peak is None else peak / 1e12,
        }  # fmt: skip


def _product(one: torch.Tensor, two: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
    def multiply() -> None:
        torch.mm(one, two, out=out)

    return multiply


def _rates(seconds: list[float], amount: float) -> dict[str, float]:
    return spread([amount / each for each in seconds])._asdict()


def copies(device: torch.device, others: list[torch.device]) -> Iterator[dict[str, Any]]:
    """GB/s between the host's memory and a GPU's, and from this GPU to others; of the CPU, within its memory."""
    there = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    if device.type == "cpu":
        yield _copied(torch.empty_like(there).fill_(1), there, device, "host", "host")
        return
    for how in ("pinned", "pageable"):
        host = torch.ones(_COPIED, dtype=torch.uint8, pin_memory=how == "pinned")
        yield _copied(host, there, device, f"host ({how})", str(device))
        yield _copied(there, host, device, str(device), f"host ({how})")
    for other in others:
        yield _copied(
            there, torch.empty(_COPIED, dtype=torch.uint8, device=other), device, str(device), str(other)
        )


def _copied(
    source: torch.Tensor, target: torch.Tensor, device: torch.device, begins: str, ends: str
) -> dict[str, Any]:
    def copy() -> None:
        target.copy_(source, non_blocking=True)

    rounds = timed([copy], device, _PACE)
    rates = _rates([laps[0] for laps in rounds], _COPIED / 1e9)
    return {"what": "copy", "from": begins, "to": ends, "bytes": _COPIED, "gb_per_s": rates}


def folder(path: str) -> dict[str, Any]:
    """MB/s of one large file, written with fsync and read again, and how many small files a second are made, looked at, removed.

    The system is asked to forget the large file before it is read; a file system may keep it in caches of its own.
    """
    found: dict[str, Any] = {"what": "folder", "folder": path}
    try:
        with own_folder(path) as place:
            found.update(_large(Path(place)))
            found.update(_small(Path(place)))
    except OSError as error:
        found["why"] = error.strerror or str(error)
    return found


def _large(place: Path) -> dict[str, Any]:
    block = os.urandom(1 << 20)
    file = place / "large"
    began = time.perf_counter()
    with file.open("wb", buffering=0) as opened:
        for _ in range(_WRITTEN >> 20):
            opened.write(block)
        os.fsync(opened.fileno())
    written = time.perf_counter() - began
    with file.open("rb", buffering=0) as opened:
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while opened.read(1 << 20):
            pass
        read = time.perf_counter() - began
    return {
        "bytes": _WRITTEN,
        "write_mb_per_s": _WRITTEN / 1e6 / written,
        "read_mb_per_s": _WRITTEN / 1e6 / read,
    }


def _small(place: Path) -> dict[str, Any]:
    names = [place / f"small-{number}" for number in range(_SMALL_FILES)]
    found: dict[str, Any] = {"files": _SMALL_FILES}
    for name, act in (("made_per_s", _make), ("looked_at_per_s", os.stat), ("removed_per_s", os.unlink)):
        began = time.perf_counter()
        for each in names:
            act(each)
        found[name] = _SMALL_FILES / (time.perf_counter() - began)
    return found


def _make(path: Path) -> None:
    with path.open("wb", buffering=0) as opened:
        opened.write(b"x" * 1024)


_SUMS_PACE = Pace(
    warm_up=3, least=10, most=10
)  # as often on each rank: a clock would let one end before the others
_SIZES = (25 << 20, 256 << 20)
"""Bytes: a bucket of DDP's, and what shows the links at their best."""
_FOUND = "found.json"
_PATIENCE = 300.0


def measure_sums(place: Place) -> Iterator[dict[str, Any]]:
    """Yield a row for each size; ``gb_per_s`` is the bus bandwidth, ``seconds`` the time of one sum."""
    row = {"what": "reduction", "processes": place.processes, "nodes": place.nodes}
    with run_folder(place) as run:
        said = Path(run, "said")
        with said.open("wb") as file:
            started = start(f"{__package__}.node", run, place, file.fileno())
            try:
                for each in started:
                    each.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                yield {**row, "why": f"not done within {_PATIENCE:g} s"}
                return
            finally:
                end(started, place)
        found = Path(run, _FOUND)
        if not found.is_file():
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [
                "no reason was given"
            ]
            yield {**row, "why": lines[-1][:300]}
            return
        for one in json.loads(found.read_text(encoding="utf-8")):
            yield {**row, **one}


def _main() -> None:
    ranks = from_environment(os.environ)
    with join(ranks, _PATIENCE) as group:
        rows = [_sums(size, group.device, ranks.world_size) for size in _SIZES]
        if ranks.first:
            Path(os.environ["SLURMGPU_RUN_DIR"], _FOUND).write_text(json.dumps(rows), encoding="utf-8")


def _sums(size: int, device: torch.device, processes: int) -> dict[str, Any]:
    values = torch.zeros(size // 4, device=device)
    rounds = timed([_sum(values)], device, _SUMS_PACE)
    seconds = [laps[0] for laps in rounds]
    amount = 2 * (processes - 1) / processes * size / 1e9
    return {
        "bytes": size,
        "backend": dist.get_backend(),
        "seconds": spread(seconds)._asdict(),
        "gb_per_s": spread([amount / each for each in seconds])._asdict(),
    }


def _sum(values: torch.Tensor) -> Callable[[], None]:
    def add() -> None:
        dist.all_reduce(values)

    return add


if __name__ == "__main__":
    _main()
