"""A save on trial, right after the first step: what cannot be saved or put back is known before there is much to lose."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from ..errors import TakenOver, TrainingError
from ..processes.group import Group
from . import checkpoint
from .checkpoint import Generation
from .snapshot import Snapshot

__all__ = ["Cost", "try_saving"]


class Cost(NamedTuple):
    """What a checkpoint costs: its size on all ranks, the seconds to write it, and those in which no step can run."""

    size: int
    seconds: float
    still: float


class _Tried(NamedTuple):
    """How it went on one rank; ``trouble``: with the disk, which may pass."""

    size: int = 0
    seconds: float = 0.0
    still: float = 0.0
    failure: Optional[str] = None
    trouble: Optional[str] = None


def try_saving(
    path: Path,
    group: Group,
    parts: Callable[[Snapshot], Mapping[str, object]],
    check: Callable[[], None],
) -> tuple[Optional[Cost], Optional[str]]:
    """Write this rank's parts as a save does, read them back, and remove them; without a manifest they count for nothing.

    Returns what it cost, or None and the trouble with the disk.

    Raises:
        TrainingError: on every rank, where the state of one cannot be saved; the message names the part.
    """
    tried, snapshot = _Tried(), Snapshot()
    began = time.perf_counter()
    try:
        check()
        copied = parts(snapshot)
        snapshot.finish()
        still = time.perf_counter() - began
        snapshot.wait()
        facts = {name: checkpoint.write_part(path, name, part) for name, part in copied.items()}
        tried = _Tried(sum(each["bytes"] for each in facts.values()), time.perf_counter() - began, still)
        for name in facts:
            checkpoint.read(Generation(path, {}), name)
    except TakenOver:
        raise
    except OSError as error:
        tried = tried._replace(trouble=error.strerror or str(error))
    except Exception as error:
        named = str(error) if isinstance(error, TrainingError) else f"{type(error).__name__}: {error}"
        tried = tried._replace(failure=named)
    failure, trouble = group.first_of(tried.failure), group.first_of(tried.trouble)  # all have written
    if group.ranks.first:
        shutil.rmtree(path, ignore_errors=True)
    if failure is not None:
        raise TrainingError(
            f"{failure}\nfound by a save on trial after its first step: no checkpoint of this training could be written"
        )
    if trouble is not None:
        return None, trouble
    size = int(group.sum(torch.tensor(tried.size, device=group.device)))
    seconds, still = group.largest(tried.seconds, tried.still)
    return Cost(size, seconds, still), None
