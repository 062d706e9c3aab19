"""Which sample comes when, and what is drawn for it: the same with any number of processes and workers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from slurmgpu.training.data import train_batches
from slurmgpu.training.generators import seed_all
from slurmgpu.training.order import Order, shares
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks

try:
    import numpy
except ImportError:  # the entrypoint does without, and so do these tests
    numpy = None  # type: ignore[assignment]


def row(order: Order, start: int, stop: int) -> list[int]:
    return [
        index for _, indices, _ in order.pieces(start, stop) for index in torch.as_tensor(indices).tolist()
    ]


def ranks(world: int) -> list[Group]:
    return [Group(Ranks(rank, rank, world, world), torch.device("cpu")) for rank in range(world)]


def test_every_epoch_holds_every_sample_once_in_an_order_of_its_own() -> None:
    order = Order(100, seed=7)
    epochs = [row(order, 100 * epoch, 100 * (epoch + 1)) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert row(Order(100, seed=8), 0, 100) != epochs[0]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("start", [0, 60, 77])
def test_the_ranks_together_take_all_positions_once_in_order(world: int, accumulate: int, start: int) -> None:
    batch, end = 30, 331
    own = [
        list(shares(start, end, batch, batch // world // accumulate, rank=rank, world_size=world))
        for rank in range(world)
    ]
    assert len({len(each) for each in own}) == 1, "every rank takes part in every round"
    rounds = [[share for share in taken if share[2]] for taken in zip(*own)]
    positions = [p for taken in rounds for low, high, _ in taken for p in range(low, high)]
    assert positions == list(range(start, end))


def from_numpy() -> float:
    return float(numpy.random.rand()) if numpy else 0.0


class Drawing(Dataset[Any]):
    """Samples with randomness from all sources there are, and one that sometimes draws more."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        extra = torch.rand(3) if index % 2 else torch.zeros(3)
        return index, torch.rand(2), extra, random.random(), from_numpy()


class AtOnce(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def drawn(dataset: Any, group: Group, start: int, end: int, **options: Any) -> list[Any]:
    settings: dict[str, Any] = {"batch": 4, "workers": 0, **options}
    ranks = group.ranks
    micro = settings["batch"] // ranks.world_size
    chosen = shares(start, end, settings["batch"], micro, rank=ranks.rank, world_size=ranks.world_size)
    order = Order(len(dataset), seed=3)
    batches = train_batches(dataset, order, chosen, group, seed=3, workers=settings["workers"])
    rows = []
    for batch in batches:
        rows += [tuple(torch.as_tensor(part[n]).tolist() for part in batch) for n in range(len(batch[0]))]
    return [(row[0], *map(str, row[1:])) for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_drawn_for_a_sample_depends_on_nothing_but_seed_epoch_and_sample(workers: int) -> None:
    (alone,) = ranks(1)
    whole = drawn(Drawing(), alone, 0, 60)
    assert drawn(Drawing(), alone, 0, 60, workers=workers) == whole
    assert drawn(Drawing(), alone, 28, 60, workers=workers) == whole[28:], "from the middle of an epoch"
    assert drawn(Drawing(), alone, 0, 60, batch=10, workers=workers) == whole
    both = [drawn(Drawing(), group, 0, 60, workers=workers) for group in ranks(2)]
    assert sorted(both[0] + both[1]) == sorted(whole)
    assert len(set(whole)) == 60, "and every epoch draws anew"


def test_the_training_process_keeps_its_own_random_state() -> None:
    seed_all(5)
    expected = torch.rand(1), random.random(), from_numpy()
    seed_all(5)
    drawn(Drawing(), ranks(1)[0], 0, 20)
    assert (torch.rand(1), random.random(), from_numpy()) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_and_batchwise_datasets_give_what_single_samples_give(workers: int) -> None:
    (alone,) = ranks(1)
    x = torch.arange(46).view(23, 2)

    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return 23

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(index), x[index]

    expected = drawn(Plain(), alone, 0, 60)
    assert drawn(TensorDataset(torch.arange(23), x), alone, 0, 60, workers=workers) == expected
    assert drawn(Subset(TensorDataset(torch.arange(23), x), range(23)), alone, 0, 60) == expected
    assert [each[0] for each in drawn(AtOnce(), alone, 0, 60)] == [each[0] for each in expected]
