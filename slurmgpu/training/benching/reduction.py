"""Sums over all processes, as DDP makes them of its gradients: ``python -m slurmgpu_training.benching.reduction`` in each.

The rate is the bus bandwidth of NVIDIA's nccl-tests (doc/PERFORMANCE.md there): 2 (n - 1) / n times the bytes of the sum over
its time, which the number of processes leaves as it is where the links are the limit.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..processes.group import join
from ..processes.ranks import from_environment
from .starting import Place, end, run_folder, start
from .timing import Pace, spread, timed

__all__ = ["measured"]

_PACE = Pace(
    warm_up=3, least=10, most=10
)  # as often on each rank: a clock would let one end before the others
_SIZES = (25 << 20, 256 << 20)
"""Bytes: a bucket of DDP's, and what shows the links at their best."""
_FOUND = "found.json"
_PATIENCE = 300.0


def measured(place: Place) -> Iterator[dict[str, Any]]:
    """Yield a row for each size; ``gb_per_s`` is the bus bandwidth, ``seconds`` the time of one sum."""
    row = {"what": "reduction", "processes": place.processes, "nodes": place.nodes}
    with run_folder(place) as run:
        said = Path(run, "said")
        with said.open("wb") as file:
            started = start(f"{__package__}.reduction", run, place, file.fileno())
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
    rounds = timed([_sum(values)], device, _PACE)
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
