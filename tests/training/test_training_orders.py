"""Orders of samples beside the shuffle: by weight and by length."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from slurmgpu.training.data import Fetch
from slurmgpu.training.order import Order
from slurmgpu.training.orders import Bucketed, Own, Weighted

from .test_training_order import row


def orders() -> list[Order]:
    lengths = torch.arange(50) * 7 % 50
    own = Own(lambda epoch: lengths.roll(epoch), 3)
    return [Order(50, 3), Weighted(lengths, 3), Bucketed(lengths, 8, 3), own]


@pytest.mark.parametrize("number", range(4))
def test_any_part_of_the_row_can_be_had_by_itself(number: int) -> None:
    whole = row(orders()[number], 0, 200)
    for start in range(0, 200, 13):
        for stop in range(start, 201, 17):
            assert row(orders()[number], start, stop) == whole[start:stop]


def test_samples_are_drawn_as_often_as_they_weigh() -> None:
    order = Weighted(torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 0.0]), seed=1)
    drawn = Counter(row(order, 0, 12_000))
    assert set(drawn) == {1, 2, 4}
    assert drawn[1] / 12_000 == pytest.approx(1 / 8, abs=0.015)
    assert drawn[4] / 12_000 == pytest.approx(5 / 8, abs=0.015)
    assert row(order, 0, 6) != row(order, 6, 12) or row(order, 12, 18) != row(order, 0, 6)


def test_a_sample_that_comes_twice_in_an_epoch_draws_anew_each_time() -> None:
    order = Weighted(torch.tensor([1.0, 0.0, 0.0, 0.0]), seed=1)

    class Drawing:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(2)

    batch = Fetch(Drawing(), seed=0)[order.pieces(1, 7)]
    assert isinstance(batch, torch.Tensor)
    assert len({tuple(each) for each in batch.tolist()}) == 6


@pytest.mark.parametrize(("samples", "batch"), [(1000, 16), (1003, 16), (5, 16), (16, 16), (40, 16)])
def test_buckets_hold_every_sample_once_an_epoch(samples: int, batch: int) -> None:
    order = Bucketed(torch.arange(samples) * 37 % 101, batch, seed=2)
    epochs = [row(order, samples * epoch, samples * (epoch + 1)) for epoch in range(4)]
    assert all(sorted(epoch) == list(range(samples)) for epoch in epochs)
    assert samples <= batch or epochs[0] != epochs[1]


def test_the_samples_of_a_step_are_of_alike_lengths_and_steps_are_shuffled() -> None:
    """Of 1003 samples: each step that does not span two epochs pads little, where a shuffle pads by half."""
    lengths = torch.rand(1003, generator=torch.Generator().manual_seed(0)) * 100
    order, batch = Bucketed(lengths, 16, seed=2), 16
    spread, means = [], []
    for step in range(3 * 1003 // batch):
        if step * batch // 1003 == (step * batch + batch - 1) // 1003:
            own = lengths[row(order, step * batch, (step + 1) * batch)]
            spread.append(float(own.max() - own.min()))
            means.append(float(own.mean()))
    assert max(spread) < 20  # of a pool that is not full
    assert sum(spread) / len(spread) < 4
    rising = sum(means[step] < means[step + 1] for step in range(len(means) - 1))
    assert 0.35 < rising / len(means) < 0.65
