"""Checksums of steps, each rank's, as ``slurmgpu checkpoint replay`` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.watching.checksums import checksum

from .conftest import RunFolder, new_run


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
    for name, value in plain.parameters().items():
        assert torch.equal(value, whole.parameters()[name])
    lines = sums_of(whole)
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert [len(line["values"]["losses"]) for line in lines] == [2, 2, 2, 2]
    assert [line["values"] for line in sums_of(stopped)] == [line["values"] for line in lines]
    of_weights = {line["values"]["weights"] for line in lines}
    assert len(of_weights) == 4
