"""The test split, exact over all ranks: every sample counts once, sums and counts are added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch

from . import randomness
from .data import to_device
from .group import Group
from .precision import Precision
from .task import Scalar, Task
from .watch import Watch

__all__ = ["evaluate"]


def evaluate(
    task: Task,
    model: torch.nn.Module,
    batches: Iterable[Any],
    sizes: list[int],
    group: Group,
    precision: Precision,
    watch: Watch,
) -> Optional[dict[str, float]]:
    """The task's measures over the whole test split, the same on every rank.

    None when the run is about to stop: then it is broken off, on all ranks, and done after the resume.
    ``model`` is the bare one: a wrapper's forward may talk to other ranks, which can have fewer batches.
    ``sizes`` are those of this rank's batches.
    """
    group.share_buffers(model)
    random_state = randomness.capture(group.device)  # when and how one tests must not change what is learned
    model.eval()
    sums: dict[str, list[Scalar]] = {}
    with torch.no_grad():
        for batch, size in zip(batches, sizes):
            if watch.wanted:
                break
            with precision.autocast():
                measures = task.evaluate(model, to_device(batch, group.device), size)
            for name, (total, count) in measures.items():
                entry = sums.setdefault(name, [0.0, 0.0])
                entry[0] = entry[0] + _wide(total)
                entry[1] = entry[1] + _wide(count)
            watch.beats += 1
    model.train()
    randomness.restore(random_state, group.device)
    own = {name: (float(total), float(count)) for name, (total, count) in sums.items()}
    everyone = group.gather((own, watch.wanted))
    if any(broken_off for _, broken_off in everyone):
        return None
    names = dict.fromkeys(name for each, _ in everyone for name in each)
    return {name: _mean([each[name] for each, _ in everyone if name in each]) for name in names}


def _wide(value: Scalar) -> Scalar:
    """Sums run in double precision and stay on the device until all batches are through."""
    return value.detach().double() if isinstance(value, torch.Tensor) else float(value)


def _mean(pairs: list[tuple[float, float]]) -> float:
    count = sum(count for _, count in pairs)
    return sum(total for total, _ in pairs) / count if count else float("nan")
