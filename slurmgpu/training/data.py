"""Each rank's share of the data: exact for the test split, equal shares of a shuffled epoch for training."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any, Union

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from .group import Group, own_cpus

__all__ = ["Share", "count_workers", "eval_loader", "to_device", "train_loader"]

# A loader beyond this many workers a rank is rarely short of CPUs, but of disk or network.
_MOST_WORKERS = 8


class Share(DistributedSampler):  # type: ignore[type-arg]  # generic only for the type checker
    """This rank's indices of an epoch, without the first ``skip``, which were trained on already."""

    skip = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.skip, None)


def train_loader(
    dataset: Any, micro_batch: int, group: Group, *, seed: int, workers: int
) -> tuple[DataLoader[Any], Share]:
    """The loader of this rank's share of the training split, and the sampler behind it."""
    ranks = group.ranks
    share = Share(dataset, num_replicas=ranks.world_size, rank=ranks.rank, shuffle=True, seed=seed)
    return _loader(dataset, share, micro_batch, group, workers, seed), share


def eval_loader(
    dataset: Any, micro_batch: int, group: Group, *, seed: int, workers: int
) -> tuple[DataLoader[Any], range]:
    """The loader of this rank's share of the test split: every sample on exactly one rank, none padded."""
    share = range(group.ranks.rank, len(dataset), group.ranks.world_size)
    return _loader(dataset, share, micro_batch, group, workers, seed), share


def _loader(
    dataset: Any, share: Any, micro_batch: int, group: Group, workers: int, seed: int
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=micro_batch,
        sampler=share,
        num_workers=workers,
        pin_memory=group.device.type == "cuda",
        persistent_workers=workers > 0,
        worker_init_fn=_leave_signals_to_the_rank,
        # Its own generator, so that starting a loader does not move the random state that a resume restores.
        generator=torch.Generator().manual_seed(seed * 1_000_003 + group.ranks.rank),
    )


def _leave_signals_to_the_rank(_worker: int) -> None:
    """A worker that dies of the rank's signal makes the rank fail before it can end in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def count_workers(wanted: Union[int, str], group: Group) -> int:
    """Loader processes for this rank; ``auto``: its CPUs but one, and none where the CPUs do the training."""
    if isinstance(wanted, int):
        return wanted
    if group.device.type == "cpu":
        return 0
    return min(_MOST_WORKERS, own_cpus(group.ranks) - 1)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on the device; from pinned memory the copy does not wait."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    return batch.to(device) if hasattr(batch, "to") else batch
