"""A save of several ranks: each writes its part, rank 0 commits all or nothing, and what rank 0 reads reaches the others."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.comparing import compare
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.formats.checkpoint import sealed
from slurmgpu.training.processes import packing
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving import checkpoint
from slurmgpu.training.saving.saver import Saved, Saver, Saving
from slurmgpu.training.saving.snapshot import Snapshot

from .conftest import Shared

WORLD = 5


def savers(folder: Path) -> list[Saver]:
    channel: Any = Shared()
    return [
        Saver(folder, Ranks(rank=rank, world_size=WORLD), channel, None, Saving(keep=1))
        for rank in range(WORLD)
    ]


def save(all_ranks: list[Saver], step: int, content: dict[int, Any] | None = None) -> list[Saved]:
    for rank, each in enumerate(all_ranks):
        piece = (content or {}).get(rank, torch.full((2,), float(step + rank)))
        parts = {f"shard-{rank}.pt": {"w": piece}, **({"model.pt": {"step": step}} if not rank else {})}
        each.start(step, Snapshot(), parts, {"samples": step, "world_size": WORLD})
    return [saved for each in all_ranks if (saved := each.collect()) is not None]


def test_the_parts_of_all_ranks_are_one_checkpoint_and_the_one_before_is_removed(tmp_path: Path) -> None:
    all_ranks = savers(tmp_path)
    for step in (10, 20):
        assert [each.error for each in save(all_ranks, step)] == [None] * WORLD
    assert [path.name for path in tmp_path.iterdir()] == ["step-20"]
    found, notes = checkpoint.newest_intact(tmp_path)
    assert found is not None
    assert notes == []
    assert sorted(found.manifest["parts"]) == ["model.pt", *(f"shard-{rank}.pt" for rank in range(WORLD))]
    assert checkpoint.read(found, "shard-3.pt")["w"].tolist() == [23.0, 23.0]


def test_a_rank_that_cannot_write_costs_all_that_save_alone(tmp_path: Path) -> None:
    all_ranks = savers(tmp_path)
    save(all_ranks, 10)
    errors = [str(each.error) for each in save(all_ranks, 20, {3: threading.Lock()})]
    assert len(set(errors)) == 1
    assert errors[0].startswith("rank 3 on")
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]
    assert [each.error for each in save(all_ranks, 20)] == [None] * WORLD


def test_ranks_that_save_different_steps_have_saved_none(tmp_path: Path) -> None:
    all_ranks = savers(tmp_path)
    for rank, each in enumerate(all_ranks):
        step = 20 if rank == 4 else 10
        each.start(step, Snapshot(), {f"shard-{rank}.pt": {}}, {"samples": step, "world_size": WORLD})
    errors = {str(saved.error) for each in all_ranks if (saved := each.collect()) is not None}
    assert errors == {"the ranks saved different steps: 10, 20"}


def test_a_comparison_reads_the_parts_of_every_rank(tmp_path: Path) -> None:
    save(savers(tmp_path / "a"), 10)
    save(savers(tmp_path / "b"), 10, {3: torch.zeros(2)})
    found = compare(tmp_path / "a/step-10", tmp_path / "b/step-10")
    assert {name for name, each in found.items() if each["count"]} == {"shard-3.pt"}


def test_a_checkpoint_with_folders_of_ranks_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Earlier versions wrote them from 65 ranks on."""
    save(savers(tmp_path), 10)
    manifest = tmp_path / "step-10/manifest.json"
    facts = json.loads(manifest.read_text())
    del facts["sha256"]
    manifest.write_bytes(sealed({**facts, "ranks_per_folder": 64}))
    with pytest.raises(
        TrainingError, match=r"earlier versions wrote .* \(checkpoint export\), and begin from that file"
    ):
        checkpoint.newest_intact(tmp_path)
    assert (tmp_path / "step-10").is_dir(), "nothing is thrown away"


def test_what_rank_0_has_read_is_the_same_where_it_is_sent() -> None:
    weight = torch.randn(64, 64)
    state: Any = OrderedDict(
        a=weight, tied=weight, turned=torch.randn(3, 4, 50, 50).to(memory_format=torch.channels_last),
        few=torch.ones(3), wide=torch.ones(1).expand(2000), half=torch.randn(5000).bfloat16(),
        deep={"x": [torch.randn(4000, 2)[::2], 7]},
    )  # fmt: skip
    state._metadata = {"": {"version": 3}}
    kept: list[torch.Tensor] = []
    data, kinds = packing.pack(state, kept)
    assert len(data) < 80_000
    assert len(kept) == 3, "tied weights once, and no tensor that is more than its memory"
    sent = [torch.empty_strided(shape, stride, dtype=dtype) for dtype, shape, stride in kinds]
    for one, other in zip(kept, sent):
        packing.as_bytes(other).copy_(packing.as_bytes(one))
    found: Any = packing.unpack(data, sent)
    assert found._metadata == state._metadata
    assert found["tied"] is found["a"]
    assert found["turned"].stride() == state["turned"].stride()
    for name in ("a", "turned", "few", "wide", "half"):
        assert torch.equal(found[name], state[name])
    assert torch.equal(found["deep"]["x"][0], state["deep"]["x"][0])
