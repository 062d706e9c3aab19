"""Orders of samples other than a shuffle: by weight, by length, by the task's own word.

Each is an ``Order``: the seed, the epoch and the position decide, so that a resume with any number of processes and workers
goes on with the sample that is next.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Optional

import torch

from .data import seed_sample
from .errors import TrainingError
from .generators import capture_random_state, raw_bytes, restore_random_state
from .order import Order, mix
from .processes.group import Group
from .settings import Config, Settings
from .task import Data, Task

__all__ = ["Bucketed", "Own", "Weighted", "make_order"]

_POOL = 50  # steps' worth of samples that are sorted together


def make_order(task: Task, dataset: Data, cfg: Config, settings: Settings, group: Group) -> Order:
    """Return the order that the task asks for, the same on every rank; a shuffle where it says nothing.

    Raises:
        TrainingError: the ranks would take samples in different orders, and so some twice and others never.
    """
    order = _make_order(task, dataset, cfg, settings, group)
    if not group.all_alike(order.mark(0)):
        marks = group.gather(order.mark(0))
        other = next(rank for rank, mark in enumerate(marks) if mark != marks[0])
        raise TrainingError(
            f"{task.path}: {task.ordered_by} does not come to the same order of samples on every rank (rank {other} has "
            "another one than rank 0); seed what is drawn there, and sort what comes from a set or a folder"
        )
    return order


def _make_order(task: Task, dataset: Data, cfg: Config, settings: Settings, group: Group) -> Order:
    kind = task.ordered_by
    if kind == "weights":
        return Weighted(task.weights(dataset, cfg), settings.seed)
    if kind == "lengths":
        return Bucketed(task.lengths(dataset, cfg), settings.batch_size, settings.seed)
    if kind == "order":
        return Own(lambda epoch: _drawn(task, dataset, cfg, epoch, group), settings.seed)
    return Order(len(dataset), settings.seed)


def _drawn(task: Task, dataset: Data, cfg: Config, epoch: int, group: Group) -> torch.Tensor:
    """Return the task's order of an epoch, from generators seeded by the epoch; the training's random state stays as it is.

    It is asked for ahead of the epoch, and for each checkpoint: what it draws must not depend on when.
    """
    before = capture_random_state(group.device)
    seed_sample(mix(cfg.seed, epoch) >> 32)
    try:
        return task.order(dataset, cfg, epoch)
    finally:
        restore_random_state(before, group.device)


class _Marked(Order):
    """An order that depends on more than seed and size."""

    def __init__(self, samples: int, seed: int) -> None:
        super().__init__(samples, seed)
        self._mark: tuple[int, Optional[int]] = (-1, None)

    def mark(self, epoch: int) -> Optional[int]:
        """Return a checksum of an epoch's samples."""
        if self._mark[0] != epoch:
            self._mark = epoch, zlib.crc32(raw_bytes(self.indices(epoch)))
        return self._mark[1]


class Weighted(_Marked):
    """Each position draws its sample by weight, with replacement; an epoch is as many draws as there are samples."""

    repeats = True

    def __init__(self, weights: torch.Tensor, seed: int) -> None:
        super().__init__(len(weights), seed)
        self._upto = weights.double().cumsum(0)

    def indices(self, epoch: int) -> torch.Tensor:
        """Samples drawn by weight."""
        # Not by torch.multinomial, which takes no more than 2**24 samples.
        drawn = torch.rand(self.samples, dtype=torch.float64, generator=self._generator(epoch))
        found = torch.searchsorted(self._upto, drawn * self._upto[-1], right=True)
        return found.clamp_(max=self.samples - 1)


class Bucketed(_Marked):
    """A shuffle in which the samples of a step are of alike lengths; every sample once an epoch.

    A shuffle is cut into pools of many steps, each sorted by length and cut into steps, and these are shuffled. A step
    that spans two epochs has a part of its own at the end of one and at the beginning of the next.
    """

    def __init__(self, lengths: torch.Tensor, batch: int, seed: int) -> None:
        super().__init__(len(lengths), seed)
        self._lengths, self._batch = lengths, batch

    def indices(self, epoch: int) -> torch.Tensor:
        """Return the samples step by step, those of a step alike."""
        generator, batch, samples = self._generator(epoch), self._batch, self.samples
        shuffled = torch.randperm(samples, generator=generator)
        rank = torch.empty(samples, dtype=torch.int64)
        rank[self._lengths[shuffled].argsort(stable=True)] = torch.arange(samples)
        pool = torch.arange(samples) // (batch * _POOL)
        # Every other pool falls, so that a step that is cut out of two of them is alike, too.
        within = torch.where(pool % 2 == 0, rank, samples - rank)
        ordered = shuffled[(pool * 2 * samples + within).argsort()]
        head = min(
            samples, -epoch * samples % batch
        )  # what is left of the step that spans from the last epoch
        full, rest = divmod(samples - head, batch)
        sizes = torch.tensor([head, *[batch] * full, rest])
        cut = torch.randperm(len(sizes), generator=generator)  # which part is cut where
        begins = torch.empty_like(sizes)
        begins[cut] = sizes[cut].cumsum(0) - sizes[cut]
        moved = begins - (sizes.cumsum(0) - sizes)
        return ordered[torch.arange(samples) + moved.repeat_interleave(sizes)]


class Own(_Marked):
    """The order that the task gives for each epoch; all epochs are as long as the first."""

    repeats = True

    def __init__(self, give: Callable[[int], torch.Tensor], seed: int) -> None:
        self._give = give
        super().__init__(len(give(0)), seed)

    def indices(self, epoch: int) -> torch.Tensor:
        """Return what the task gives for the epoch."""
        found = self._give(epoch)
        if len(found) != self.samples:
            raise TrainingError(
                f"order gave {len(found)} samples for epoch {epoch} and {self.samples} for epoch 0: "
                "all epochs must be of one length, by which the positions of all samples are counted"
            )
        return found
