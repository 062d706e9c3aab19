"""The test split, exact over all ranks: every sample counts once, sums and counts are added up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Optional, TypeVar

import torch

from .batches import to_device
from .errors import EvaluationFailed
from .precision import Precision
from .processes.group import Group
from .saving import randomness
from .task import Scalar, Task
from .watching.watch import Watch

__all__ = ["evaluate", "trained_sums"]

T = TypeVar("T")

_PATIENCE = 60.0  # seconds in which the other ranks end their batch


class _Part(NamedTuple):
    """What one rank has found: sums and counts by name, and how it ended."""

    sums: dict[str, tuple[float, float]]
    broken_off: bool
    failed: bool = False
    changed: bool = False


def evaluate(
    task: Task,
    model: torch.nn.Module,
    batches: Iterable[object],
    sizes: list[int],
    group: Group,
    precision: Precision,
    watch: Watch,
) -> Optional[dict[str, float]]:
    """The task's measures over the whole test split, the same on every rank.

    None when the run is about to stop: then it is broken off, on all ranks, and done after the resume.
    ``model`` is the bare one: a wrapper's forward may talk to other ranks, which can have fewer batches.
    ``sizes`` are those of this rank's batches.

    Raises:
        EvaluationFailed: on every rank, when it has failed on any; the random state is as before, and so is the
            model, or the error says that it is not.
    """

    def measure(batch: object, size: int) -> Mapping[str, tuple[Scalar, Scalar]]:
        with precision.autocast():
            return task.evaluate(model, to_device(batch, group.device), size)

    group.share_buffers(model)
    before = trained_sums(model) if group.ranks.first else []  # what is saved is rank 0's
    random_state = randomness.capture(group.device)  # when and how one tests must not change what is learned
    model.eval()
    own: dict[str, tuple[float, float]] = {}
    failure: Optional[Exception] = None
    broken = changed = False
    try:
        own = _sums(measure, zip(batches, sizes), watch)
    except Exception as error:
        failure = error
    try:
        model.train()
        randomness.restore(random_state, group.device)
        changed = failure is not None and _differ(before, trained_sums(model) if before else [])
    except Exception:
        if failure is None:
            raise
        broken = True
    if failure is not None and broken:
        raise failure  # some errors leave a GPU unusable: the first says why
    if failure is None:
        everyone = group.gather(_Part(own, watch.wanted))
    else:
        watch.want("error")  # so that the others break off, too
        everyone = _gather_in_time(group, _Part(own, True, True, changed), failure, watch.hang_timeout)
    failed = [rank for rank, each in enumerate(everyone) if each.failed]
    if failed:
        raise EvaluationFailed(failed, failure, any(each.changed for each in everyone))
    if any(each.broken_off for each in everyone):
        return None
    names = dict.fromkeys(name for each in everyone for name in each.sums)
    return {name: _mean([each.sums[name] for each in everyone if name in each.sums]) for name in names}


def trained_sums(model: torch.nn.Module) -> list[torch.Tensor]:
    """The sum of each parameter that is trained: a fraction of what it costs to look at each value."""
    trained = [each.detach() for each in model.parameters() if each.requires_grad]
    # Those of fp16 would overflow in fp16.
    return [each.sum(dtype=torch.float32 if each.dtype == torch.float16 else None) for each in trained]


def _differ(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether two lists of sums differ; with sums of NaN they do."""
    return len(some) != len(others) or not all(map(torch.equal, some, others))


def _gather_in_time(group: Group, value: T, failure: Exception, hang_timeout: Optional[float]) -> list[T]:
    """Gather after this rank's failure; raise the failure if the others do not come.

    They may be waiting for this rank in a collective of the task, which only its end releases. It has to end before the
    hang watch ends it, or the failure is never shown.
    """
    found: list[list[T]] = []

    def gather() -> None:
        if group.device.type == "cuda":
            torch.cuda.set_device(group.device)  # a thread begins with device 0
        with contextlib.suppress(Exception):
            found.append(group.gather(value))

    thread = threading.Thread(target=gather, daemon=True)
    thread.start()
    thread.join(_PATIENCE if hang_timeout is None else min(_PATIENCE, hang_timeout / 2))
    if not found:
        raise failure
    return found[0]


def _sums(
    measure: Callable[[object, int], Mapping[str, tuple[Scalar, Scalar]]],
    batches: Iterable[tuple[object, int]],
    watch: Watch,
) -> dict[str, tuple[float, float]]:
    """Sums and counts by name over this rank's batches, up to where a stop is wanted."""
    sums: dict[str, list[Scalar]] = {}
    with torch.no_grad():
        for batch, size in batches:
            if watch.wanted:
                break
            for name, (total, count) in measure(batch, size).items():
                entry = sums.setdefault(name, [0.0, 0.0])
                entry[0] = entry[0] + _wide(total)
                entry[1] = entry[1] + _wide(count)
            watch.beats += 1
    return {name: (float(total), float(count)) for name, (total, count) in sums.items()}


def _wide(value: Scalar) -> Scalar:
    """Sums run in double precision and stay on the device until all batches are through."""
    return value.detach().double() if isinstance(value, torch.Tensor) else float(value)


def _mean(pairs: list[tuple[float, float]]) -> float:
    count = sum(count for _, count in pairs)
    return sum(total for total, _ in pairs) / count if count else float("nan")
