"""Checkpoints of many ranks: in folders, each with an index; what any one rank does hardly grows with their number.

Two ranks to a folder here, where trainings have 64: so five ranks have folders in folders.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import threading
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.comparing import compare
from slurmgpu.training.processes import packing, tree
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.processes.tree import Tree
from slurmgpu.training.saving import checkpoint
from slurmgpu.training.saving.checkpoint import Generation
from slurmgpu.training.saving.layout import Layout
from slurmgpu.training.saving.saver import Saved, Saver, Saving
from slurmgpu.training.saving.snapshot import Snapshot

from .conftest import Shared

WORLD = 5


@pytest.fixture(autouse=True)
def two_to_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "FAN", 2)


def savers(folder: Path, world: int = WORLD, channel: Any = None) -> list[Saver]:
    channel = channel or Shared()
    return [
        Saver(folder, Ranks(rank=rank, world_size=world), channel, None, Saving(keep=1))
        for rank in range(world)
    ]


def save(all_ranks: list[Saver], step: int, broken: int | None = None) -> list[Saved]:
    for rank, each in enumerate(all_ranks):
        content: Any = threading.Lock() if rank == broken else torch.full((2,), float(step + rank))
        parts = {f"shard-{rank}.pt": {"w": content}, **({"model.pt": {"step": step}} if not rank else {})}
        each.start(step, Snapshot(), parts, {"samples": step, "world_size": len(all_ranks)})
    found = [each.collect() for each in all_ranks]
    return [each for each in found if each is not None]


def newest(folder: Path) -> Generation:
    found, notes = checkpoint.newest_intact(folder)
    assert found is not None
    assert notes == []
    return found


def test_five_ranks_are_saved_into_folders_and_each_folder_has_its_index(tmp_path: Path) -> None:
    saved = save(savers(tmp_path), 10)
    files = sorted(
        str(path.relative_to(tmp_path / "step-10")) for path in tmp_path.rglob("*") if path.is_file()
    )
    assert files == [
        "manifest.json", "model.pt", "ranks-0-3/index.json",
        "ranks-0-3/ranks-0-1/index.json", "ranks-0-3/ranks-0-1/shard-0.pt", "ranks-0-3/ranks-0-1/shard-1.pt",
        "ranks-0-3/ranks-2-3/index.json", "ranks-0-3/ranks-2-3/shard-2.pt", "ranks-0-3/ranks-2-3/shard-3.pt",
        "ranks-4-4/index.json", "ranks-4-4/ranks-4-4/index.json", "ranks-4-4/ranks-4-4/shard-4.pt",
    ]  # fmt: skip
    found = newest(tmp_path)
    assert sorted(found.manifest["parts"]) == ["model.pt", "ranks-0-3/index.json", "ranks-4-4/index.json"]
    sizes = sum((tmp_path / "step-10" / name).stat().st_size for name in files if name.endswith(".pt"))
    assert {each.size for each in saved} == {sizes}
    assert [int(checkpoint.read(found, f"shard-{rank}.pt")["w"][0]) for rank in range(5)] == [
        10,
        11,
        12,
        13,
        14,
    ]


def test_those_who_speak_for_their_ranks_remove_old_checkpoints_and_no_message_stays(tmp_path: Path) -> None:
    channel = Shared()
    all_ranks = savers(tmp_path, channel=channel)
    for step in (10, 20, 30):
        assert [each.error for each in save(all_ranks, step)] == [None] * WORLD
    assert [path.name for path in tmp_path.iterdir()] == ["step-30"]
    assert list(channel.values) == ["save/3/result"]
    fewer = savers(tmp_path, 1)
    assert [each.error for each in save(fewer, 40)] == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["step-40"]


def test_a_rank_that_cannot_write_costs_all_that_save_alone(tmp_path: Path) -> None:
    all_ranks = savers(tmp_path)
    save(all_ranks, 10)
    errors = [str(each.error) for each in save(all_ranks, 20, broken=3)]
    assert len(set(errors)) == 1
    assert errors[0].startswith("rank 3 on")
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]
    assert [each.error for each in save(all_ranks, 20)] == [None] * WORLD


@pytest.mark.parametrize("name", ["index.json", "shard-3.pt"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_damaged_folder_is_seen_by_a_start_and_by_verify(tmp_path: Path, name: str, how: str) -> None:
    all_ranks = savers(tmp_path)
    save(all_ranks, 10)
    victim = tmp_path / "step-10/ranks-0-3/ranks-2-3" / name
    if how == "gone":
        victim.unlink()
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    if importlib.util.find_spec("pydantic") is not None:
        ((one, problems),) = importlib.import_module("slurmgpu.runs.checkpoints").read_through(tmp_path)
        assert one.step == 10
        assert any(f"ranks-0-3/ranks-2-3/{name}" in problem for problem in problems)
    with pytest.raises(checkpoint.TrainingError, match=f"step-10: ranks-0-3/ranks-2-3/{name} "):
        checkpoint.newest_intact(tmp_path)


def test_verify_and_compare_read_every_file_of_every_folder(tmp_path: Path) -> None:
    reading = pytest.importorskip("slurmgpu.runs.checkpoints", reason="needs Pydantic", exc_type=ImportError)
    save(savers(tmp_path / "a"), 10)
    save(savers(tmp_path / "b"), 10)
    save(savers(tmp_path / "c"), 10)
    odd = savers(tmp_path / "c")
    odd[3].start(10, Snapshot(), {"shard-3.pt": {"w": torch.zeros(2)}}, {})
    for rank in (0, 1, 2, 4):
        part = {f"shard-{rank}.pt": {"w": torch.full((2,), float(10 + rank))}}
        odd[rank].start(
            10, Snapshot(), {**part, **({"model.pt": {"step": 10}} if not rank else {})}, {"world_size": 5}
        )
    for each in odd:
        each.collect()
    (one,) = reading.checkpoints(tmp_path / "a")
    assert reading.damage(one) == []
    assert len(one.manifest.parts) == 11
    same = compare(tmp_path / "a/step-10", tmp_path / "b/step-10")
    assert len(same) == 6
    assert {each["count"] for each in same.values()} == {0}
    other = compare(tmp_path / "a/step-10", tmp_path / "c/step-10")
    assert {name for name, each in other.items() if each["count"]} == {"ranks-0-3/ranks-2-3/shard-3.pt"}


def test_what_a_killed_save_left_in_folders_is_removed_by_all(tmp_path: Path) -> None:
    save(savers(tmp_path), 10)
    save(savers(tmp_path / "other"), 20)
    (tmp_path / "other/step-20/manifest.json").unlink()
    (tmp_path / "other/step-20").rename(tmp_path / "step-20")
    (tmp_path / "other").rmdir()
    left = checkpoint.sweep(tmp_path)
    assert sorted(path.name for path in left) == ["ranks-0-1", "ranks-2-3", "ranks-4-4"]
    checkpoint.sweep_together(tmp_path, left, checkpoint.Group(Ranks(), torch.device("cpu")))
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]


@pytest.mark.parametrize(
    ("world", "fan", "most"), [(1, 64, 0), (64, 64, 63), (1000, 64, 78), (1024, 2, 10), (5000, 64, 127)]
)
def test_every_rank_is_heard_once_and_none_hears_many(world: int, fan: int, most: int) -> None:
    heard = [
        other
        for rank in range(world)
        for span in Tree(rank, world, fan).spans
        if rank % span == 0
        for other in Tree(rank, world, fan).heard(span)
    ]
    assert sorted(heard) == list(range(1, world))
    first = Tree(0, world, fan)
    assert sum(len(first.heard(span)) for span in first.spans) == most


@pytest.mark.parametrize(("world", "fan"), [(64, 64), (65, 64), (1000, 64), (9, 2)])
def test_no_folder_has_more_entries_than_its_fan_allows(world: int, fan: int) -> None:
    layout = Layout(world, fan)
    places = [layout.place(f"rank-{rank}.pt") for rank in range(world)]
    assert len(set(places)) == world
    inside: dict[str, set[str]] = {}
    for place in places:
        for depth, name in enumerate(pieces := place.split("/")):
            inside.setdefault("/".join(pieces[:depth]), set()).add(name)
    assert max(map(len, inside.values())) <= fan
    if world <= fan:
        assert set(places) == {f"rank-{rank}.pt" for rank in range(world)}


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


class Counting:
    """A rank's side of a channel, which counts its messages."""

    def __init__(self, channel: Shared) -> None:
        self.channel, self.messages = channel, 0

    def __getattr__(self, name: str) -> Any:
        self.messages += 1
        return getattr(self.channel, name)


@pytest.mark.parametrize(("world", "most"), [(3, 8), (9, 16), (33, 24)])
def test_messages_of_a_save_grow_with_folders_and_not_ranks(tmp_path: Path, world: int, most: int) -> None:
    channel = Shared()
    all_ranks = [
        Saver(tmp_path, Ranks(rank=rank, world_size=world), Counting(channel), None, Saving(keep=1))  # type: ignore[arg-type]
        for rank in range(world)
    ]
    save(all_ranks, 10)
    for each in all_ranks:
        each._channel.messages = 0  # type: ignore[attr-defined]
    assert [each.error for each in save(all_ranks, 20)] == [
        None
    ] * world  # and removes the checkpoint before it
    counts = [each._channel.messages for each in all_ranks]  # type: ignore[attr-defined]
    assert max(counts) == counts[0] == most
    assert set(counts[1::2]) == {2}, "ranks that hear no other"


def counted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Counter[int], threading.local]:
    """Operations on files below a folder, by the ``rank`` that the thread has, or that which started it had."""
    counts: Counter[int] = Counter()
    own = threading.local()

    def wrap(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def around(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            below = (
                isinstance(path, int) or named.get("dir_fd") is not None or str(path).startswith(str(folder))
            )
            if below and hasattr(own, "rank"):
                counts[own.rank] += 1
            return call(path, *arguments, **named)

        monkeypatch.setattr(owner, name, around)

    for name in (
        "open",
        "stat",
        "lstat",
        "mkdir",
        "rename",
        "replace",
        "scandir",
        "listdir",
        "fsync",
        "unlink",
        "rmdir",
    ):
        wrap(os, name)
    wrap(io, "open")
    monkeypatch.setattr("builtins.open", io.open)
    start = threading.Thread.start

    def born(thread: threading.Thread) -> None:
        rank, run = getattr(own, "rank", None), thread.run

        def attributed() -> None:
            own.rank = rank
            run()

        thread.run = attributed if rank is not None else run  # type: ignore[method-assign]
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", born)
    return counts, own


@pytest.mark.parametrize("world", [3, 9, 33])
def test_what_a_rank_does_for_a_save_grows_with_the_levels_of_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """The bounds of docs/training.md, for one file of each rank and one of all together."""
    all_ranks = savers(tmp_path, world)
    save(all_ranks, 10)
    counts, own = counted(monkeypatch, tmp_path)
    for rank, each in enumerate(all_ranks):
        own.rank = rank
        parts = {f"shard-{rank}.pt": {"w": torch.ones(2)}, **({"model.pt": {}} if not rank else {})}
        each.start(20, Snapshot(), parts, {"world_size": world})
    for rank, each in enumerate(all_ranks):
        own.rank = rank
        assert str(getattr(each.collect(), "error", "none saved")) == "None"
    levels = math.ceil(math.log(world, 2))
    of_each, of_first = 8 + 3 * (levels + 2), 8 + 9 * (levels - 1) + 25 + 2 + 1 + 5 * levels
    assert {rank: counts[rank] for rank in range(1, world, 2) if not 0 < counts[rank] <= of_each} == {}
    assert of_each < counts[0] <= of_each + of_first
