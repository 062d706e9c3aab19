"""Checksums of steps, each rank's, as ``slurmgpu checkpoint replay`` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.watching.verifying import Sums, checksum

from .conftest import RunFolder, new_run, same


def sums_of(run: RunFolder, rank: int = 0) -> list[dict[str, Any]]:
    lines = (run.path / "checksums" / f"rank-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex128])
def test_any_flipped_bit_changes_a_checksum(kind: torch.dtype) -> None:
    tensor = torch.ones(3, dtype=kind)
    before = int(checksum(tensor))
    raw = torch.view_as_real(tensor) if kind == torch.complex128 else tensor
    one = raw.view(torch.uint8).reshape(-1)
    for bit in range(8):
        one[0] ^= 1 << bit
        assert int(checksum(tensor)) != before, bit
        one[0] ^= 1 << bit


def nudged(tensor: torch.Tensor, place: int, by: int) -> None:
    """Move one number by so many units in its last place."""
    tensor.detach().view(-1).view(torch.int32)[place] += by


@pytest.mark.parametrize("places", [(0, 1), (0, 5000), (1, 4097), (4999, 5000)])
def test_two_errors_that_cancel_in_a_sum_change_a_checksum(places: tuple[int, int]) -> None:
    tensor = torch.ones(6000)
    before = int(checksum(tensor))
    for place, by in zip(places, (1, -1)):
        nudged(tensor, place, by)
    assert int(checksum(tensor)) != before


def test_errors_of_two_states_of_an_optimizer_that_cancel_in_a_sum_are_seen() -> None:
    """As of a rounding error that goes up in one layer's state and down in another's."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    losses: list[float] = []

    def take(size: int) -> None:
        model(torch.ones(size, 3)).sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()

    def seen() -> str:
        found = Sums(model, [optimizer], lambda: losses).of(lambda _: None, 1)["optimizer"]
        assert isinstance(found, str)
        return found

    take(2)
    before, states = seen(), list(optimizer.state.values())
    for one, other in (
        (states[0]["exp_avg"], states[1]["exp_avg"]),
        (states[0]["exp_avg"], states[0]["exp_avg_sq"]),
    ):
        nudged(one, 0, 1)
        nudged(other, 0, -1)
        assert seen() != before
        nudged(one, 0, -1)
        nudged(other, 0, 1)
    # Resumed, the states come in another order, and so do the names of each.
    optimizer.state = {key: dict(reversed(optimizer.state[key].items())) for key in reversed(optimizer.state)}  # type: ignore[assignment]
    assert seen() == before


def test_numbers_alone_and_sparse_tensors_have_a_checksum() -> None:
    assert int(checksum(torch.tensor(1.0))) == int(checksum(torch.ones(1)))
    assert int(checksum(torch.eye(2).to_sparse())) == int(checksum(torch.ones(2)))


def test_a_training_with_checksums_is_the_same_as_one_without_and_as_a_resumed_one(tmp_path: Path) -> None:
    settings = {"batch_size": 20, "max_steps": 8, "log_every": 1, "accumulate": 2}
    plain, whole, stopped = (new_run(tmp_path, name) for name in ("plain", "whole", "stopped"))
    plain.write("Restless", **settings)
    plain.here()
    for run in (whole, stopped):
        run.write("Restless", checksum_steps=2, **settings)
    whole.here()
    stopped.here(SLURMGPU_MAX_STEPS="5")
    stopped.here()
    assert whole.losses() == plain.losses()
    assert same(whole.parameters(), plain.parameters())
    lines = sums_of(whole)
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert [len(line["values"]["losses"]) for line in lines] == [2, 2, 2, 2]
    assert [line["values"] for line in sums_of(stopped)] == [line["values"] for line in lines]
    of_weights = {line["values"]["weights"] for line in lines}
    assert len(of_weights) == 4
