"""Checkpoints: whole or nothing, verified before use, the last good one when the newest is damaged."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from slurmgpu.training import checkpoint
from slurmgpu.training.checkpoint import Generation, newest_intact, plain, read, save, sweep
from slurmgpu.training.errors import TrainingError


def save_steps(folder: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        save(folder, step, {"a.pt": {"step": step, "x": torch.ones(3)}}, {"epoch": step}, keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def found(folder: Path) -> Generation:
    generation, _ = newest_intact(folder)
    assert generation is not None
    return generation


def test_the_manifest_holds_size_and_sha256_of_each_part(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    manifest = json.loads((tmp_path / "step-5" / "manifest.json").read_text())
    content = (tmp_path / "step-5" / "a.pt").read_bytes()
    assert manifest["parts"] == {
        "a.pt": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    }
    assert (manifest["schema"], manifest["step"], manifest["epoch"]) == ("slurmgpu.checkpoint/1", 5, 5)


def test_the_newest_by_number_is_found_and_read(tmp_path: Path) -> None:
    save_steps(tmp_path, 9, 10)
    assert read(found(tmp_path), "a.pt")["step"] == 10


def test_only_the_newest_few_are_kept(tmp_path: Path) -> None:
    save_steps(tmp_path, 9, 10, 11, 12, keep=2)
    assert names(tmp_path) == ["step-11", "step-12"]


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert newest_intact(tmp_path / "none") == (None, [])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda p: p.write_bytes(bytes([p.read_bytes()[0] ^ 1]) + p.read_bytes()[1:]),
            "differs from its SHA-256",
        ),
        (lambda p: p.write_bytes(p.read_bytes()[:100]), "has 100 bytes instead of"),
        (lambda p: p.unlink(), "a.pt is missing"),
        (lambda p: p.with_name("manifest.json").write_text("{}"), "manifest.json is not of schema"),
        (lambda p: p.with_name("manifest.json").write_bytes(b""), "Expecting value"),
    ],
    ids=["flipped bit", "cut off", "missing", "empty mapping", "empty file"],
)
def test_a_damaged_newest_falls_back_says_why_and_is_kept_aside(tmp_path: Path, damage, reason: str) -> None:
    save_steps(tmp_path, 5, 10)
    damage(tmp_path / "step-10" / "a.pt")
    generation, (note,) = newest_intact(tmp_path)
    assert generation is not None
    assert generation.path.name == "step-5"
    assert reason in note
    assert "checkpoint step-10 is damaged" in note
    assert "falling back to step-5" in note
    assert names(tmp_path) == ["damaged-step-10-1", "step-5"]


def test_when_all_are_damaged_nothing_is_thrown_away(tmp_path: Path) -> None:
    save_steps(tmp_path, 5, 10)
    for part in tmp_path.glob("*/a.pt"):
        part.write_bytes(b"")
    with pytest.raises(TrainingError, match=r"no checkpoint in .* is intact \(step-10: a.pt has 0 bytes"):
        newest_intact(tmp_path)
    assert names(tmp_path) == ["step-10", "step-5"]


def test_a_save_that_was_killed_counts_for_nothing_and_is_swept(tmp_path: Path) -> None:
    save_steps(tmp_path, 5, 10)
    (tmp_path / "step-10" / "manifest.json").unlink()
    (tmp_path / "step-5" / "a.pt.tmp").write_bytes(b"half")
    sweep(tmp_path)
    assert found(tmp_path).path.name == "step-5"
    assert names(tmp_path) == ["step-5"]
    assert names(tmp_path / "step-5") == ["a.pt", "manifest.json"]


@pytest.mark.parametrize("last_write", range(3))
def test_a_kill_at_any_write_leaves_the_generation_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_write: int
) -> None:
    save_steps(tmp_path, 5)
    writes = iter([None] * last_write)

    def stop(file: object) -> None:
        if next(writes, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_sync", stop)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 10, {"a.pt": 1, "b.pt": 2}, {}, 1)
    assert found(tmp_path).path.name == "step-5"


def test_a_step_that_is_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    save(tmp_path, 5, {"b.pt": 1}, {}, 2)
    assert names(tmp_path / "step-5") == ["b.pt", "manifest.json"]


def test_a_folder_that_a_node_does_not_see_is_explained(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    generation = found(tmp_path)
    shutil.rmtree(generation.path)
    with pytest.raises(TrainingError, match="on a file system that all nodes share"):
        read(generation, "a.pt")


def test_what_could_not_be_read_back_is_refused_when_it_is_saved() -> None:
    state = {"milestones": Counter([3, 3]), "pair": (1, [2.0, None]), "x": torch.ones(1)}
    assert plain(state, "state") == {"milestones": {3: 2}, "pair": (1, [2.0, None]), "x": torch.ones(1)}
    with pytest.raises(
        TrainingError, match=r"the state\['a'\]\[1\] is a object, which a checkpoint cannot hold"
    ):
        plain({"a": [0, object()]}, "the state")
