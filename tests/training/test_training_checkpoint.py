"""Checkpoints: whole or nothing, verified before use, the last good one when the newest is damaged."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.damaging import DAMAGES, spoil
from slurmgpu.training import files
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.formats import checkpoint as formats
from slurmgpu.training.formats.checkpoint import read_manifest, sha256
from slurmgpu.training.processes.group import Channel
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving import checkpoint
from slurmgpu.training.saving.checkpoint import Generation, newest_intact, read, sweep
from slurmgpu.training.saving.saver import Saved, Saver, Saving
from slurmgpu.training.saving.snapshot import Snapshot


def save(
    folder: Path, step: int, parts: dict[str, Any], keep: int = 2, keep_every: int | None = None
) -> Saved:
    saver = Saver(folder, Ranks(), Channel(Ranks(), 5), None, Saving(keep=keep, keep_every=keep_every))
    saver.start(step, Snapshot(), parts, {"epoch": step, "samples": step, "world_size": 1})
    saved = saver.collect()
    assert saved is not None
    return saved


def save_steps(folder: Path, *steps: int, keep: int = 2, keep_every: int | None = None) -> None:
    for step in steps:
        saved = save(folder, step, {"a.pt": {"step": step, "x": torch.ones(3)}}, keep, keep_every)
        assert saved.error is None


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
    assert (manifest["schema"], manifest["step"], manifest["epoch"]) == ("slurmgpu.checkpoint/2", 5, 5)


def test_no_flipped_bit_in_a_manifest_is_accepted(tmp_path: Path) -> None:
    save_steps(tmp_path, 40)
    path = tmp_path / "step-40"
    text = (path / "manifest.json").read_bytes()
    draw = random.Random(0)
    accepted = []
    for _ in range(500):
        place, bit = draw.randrange(len(text)), draw.randrange(8)
        flipped = bytearray(text)
        flipped[place] ^= 1 << bit
        (path / "manifest.json").write_bytes(flipped)
        with contextlib.suppress(ValueError):
            read_manifest((path / "manifest.json").read_bytes(), 40)
            accepted.append((place, bit))
    assert accepted == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("step", 41, "manifest.json is of step 41"),
        ("step", None, "manifest.json: step is None"),
        ("samples", -1, "manifest.json: samples is -1"),
        ("world_size", 0, "manifest.json: world_size is 0"),
    ],
)
def test_an_unsigned_manifest_must_make_sense(tmp_path: Path, name: str, value: object, reason: str) -> None:
    """Those of earlier versions have none."""
    save_steps(tmp_path, 39, 40)
    path = tmp_path / "step-40" / "manifest.json"
    manifest = json.loads(path.read_text()) | {"schema": "slurmgpu.checkpoint/1"}
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    assert found(tmp_path).manifest["step"] == 40
    path.write_text(json.dumps({**manifest, name: value}))
    generation, notes = newest_intact(tmp_path)
    assert generation.manifest["step"] == 39
    assert f"checkpoint step-40 is damaged ({reason})" in notes[0]


def test_of_a_link_to_a_checkpoint_only_the_link_is_removed(tmp_path: Path) -> None:
    """Somebody keeps it elsewhere; and a start does not fail for a link to a disk that is away."""
    folder, kept = tmp_path / "checkpoints", tmp_path / "archive"
    save_steps(folder, 5)
    (folder / "step-5").rename(kept)
    (folder / "step-5").symlink_to(kept)
    (folder / "step-4").symlink_to(tmp_path / "away")
    save_steps(folder, 10, 15)
    assert names(kept) == ["a.pt", "manifest.json"]
    sweep(folder)
    assert names(folder) == ["step-10", "step-15", "step-4"]


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
        (
            lambda p: p.with_name("manifest.json").write_bytes(b""),
            "manifest.json cannot be read: Expecting value",
        ),
    ],
    ids=["flipped bit", "cut off", "missing", "empty mapping", "empty file"],
)
def test_a_damaged_newest_falls_back_says_why_and_is_kept_aside(tmp_path: Path, damage, reason: str) -> None:
    save_steps(tmp_path, 5, 10)
    damage(tmp_path / "step-10" / "a.pt")
    generation, (note,) = newest_intact(tmp_path)
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


def failing(times: int, number: int) -> Callable[[Path], str]:
    """A reading of parts that fails so often with this error of the system."""
    left = [times]

    def read(path: Path) -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number), str(path))
        return sha256(path)

    return read


@pytest.mark.usefixtures("no_patience")
def test_a_file_server_away_briefly_costs_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 5, 10)
    monkeypatch.setattr(formats, "sha256", failing(2, errno.ESTALE))
    generation, notes = newest_intact(tmp_path)
    assert generation.path.name == "step-10"
    assert notes == []
    assert names(tmp_path) == ["step-10", "step-5"]


@pytest.mark.usefixtures("no_patience")
def test_a_part_that_stays_unreadable_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 5, 10)
    monkeypatch.setattr(formats, "sha256", failing(3, errno.EIO))
    generation, (note,) = newest_intact(tmp_path)
    assert generation.path.name == "step-5"
    assert "Input/output error" in note
    assert names(tmp_path) == ["damaged-step-10-1", "step-5"]


def test_a_checkpoint_without_access_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 5, 10)
    monkeypatch.setattr(formats, "sha256", failing(1, errno.EACCES))
    with pytest.raises(TrainingError, match=r"cannot read the checkpoint step-10 .*Permission denied"):
        newest_intact(tmp_path)
    assert names(tmp_path) == ["step-10", "step-5"]


def unseen(monkeypatch: pytest.MonkeyPatch, lost: Path, times: int) -> None:
    """The file server does not show a path so often; ``exists`` and ``glob`` as Python 3.14 has them."""
    left = [times]

    def hiding(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Any, *arguments: Any, **named: Any) -> Any:
            if str(path) == str(lost) and left[0] > 0:
                left[0] -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return real(path, *arguments, **named)

        return act

    def exists(path: Path) -> bool:
        try:
            path.stat()
        except OSError:
            return False
        return True

    def glob(path: Path, pattern: str) -> list[Path]:
        try:
            list(path.iterdir())
        except OSError:
            return []
        return list(real_glob(path, pattern))

    real_glob = Path.glob
    monkeypatch.setattr(Path, "stat", hiding(Path.stat))
    monkeypatch.setattr(Path, "iterdir", hiding(Path.iterdir))
    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr(Path, "glob", glob)


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("lost", ["step-10/manifest.json", "."])
@pytest.mark.parametrize("act", [sweep, newest_intact])
def test_what_the_file_server_does_not_show_for_a_moment_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object], lost: str
) -> None:
    save_steps(tmp_path, 5, 10)
    with monkeypatch.context() as patch:
        unseen(patch, tmp_path / lost, 2)
        result = act(tmp_path)
    assert names(tmp_path) == ["step-10", "step-5"]
    if act is newest_intact:
        assert result == (found(tmp_path), [])
        assert found(tmp_path).path.name == "step-10"


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("lost", ["step-10/manifest.json", "."])
@pytest.mark.parametrize("act", [sweep, newest_intact])
def test_what_the_file_server_does_not_show_at_all_ends_the_start_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object], lost: str
) -> None:
    save_steps(tmp_path, 5, 10)
    with monkeypatch.context() as patch:
        unseen(patch, tmp_path / lost, 99)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            act(tmp_path)
    assert names(tmp_path) == ["step-10", "step-5"]
    assert found(tmp_path).path.name == "step-10"


def test_a_save_that_was_killed_counts_for_nothing_and_is_swept(tmp_path: Path) -> None:
    save_steps(tmp_path, 5, 10)
    (tmp_path / "step-10" / "manifest.json").unlink()
    (tmp_path / "step-5" / "a.pt.tmp").write_bytes(b"half")
    sweep(tmp_path)
    assert found(tmp_path).path.name == "step-5"
    assert names(tmp_path) == ["step-5"]
    assert names(tmp_path / "step-5") == ["a.pt", "manifest.json"]


@pytest.mark.parametrize("what", ["_sync", "_rename"])
@pytest.mark.parametrize("last_write", range(3))
def test_a_kill_at_any_write_leaves_the_generation_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_write: int, what: str
) -> None:
    """Killed in the middle of two parts and a manifest, before each sync and before each rename."""
    save_steps(tmp_path, 5)
    child = os.fork()
    if not child:
        writes = iter([None] * last_write)
        real = getattr(files, what)

        def stop(*arguments: object) -> None:
            if next(writes, "over") == "over":
                os._exit(9)
            real(*arguments)

        setattr(files, what, stop)
        save(tmp_path, 10, {"a.pt": 1, "b.pt": 2}, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert found(tmp_path).path.name == "step-5"
    sweep(tmp_path)
    assert names(tmp_path) == ["step-5"]


def test_a_folder_that_a_node_does_not_see_is_explained(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    generation = found(tmp_path)
    shutil.rmtree(generation.path)
    with pytest.raises(TrainingError, match="on a file system that all nodes share"):
        read(generation, "a.pt")


def test_what_could_not_be_read_back_is_refused_when_it_is_saved() -> None:
    state = {"milestones": Counter([3, 3]), "pair": (1, [2.0, None]), "x": torch.ones(1)}
    copy = Snapshot().take(state, "the state")
    assert copy == {"milestones": {3: 2}, "pair": (1, [2.0, None]), "x": torch.ones(1)}
    with pytest.raises(
        TrainingError, match=r"the state\['a'\]\[1\] is a object, which a checkpoint cannot hold"
    ):
        Snapshot().take({"a": [0, object()]}, "the state")


def test_a_checkpoint_is_written_during_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that begins a save is back while a part of it has still to be written."""
    trained = threading.Event()
    real: Callable[..., Any] = checkpoint.write_part

    def slow(*arguments: Any) -> Any:
        assert trained.wait(120)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "write_part", slow)
    saver = Saver(tmp_path, Ranks(), Channel(Ranks(), 5), None, Saving())
    saver.start(5, Snapshot(), {"a.pt": 1}, {"epoch": 1, "samples": 5, "world_size": 1})
    assert saver.writing
    assert newest_intact(tmp_path) == (None, [])
    trained.set()
    saved = saver.collect()
    assert saved.error is None
    assert names(tmp_path) == ["step-5"]


def test_a_conjugate_is_not_taken_for_what_it_shares_memory_with() -> None:
    numbers = torch.tensor([1 + 2j])
    taken = Snapshot().take([numbers, numbers.conj(), numbers.imag, numbers.conj().imag], "x")
    assert [each.tolist() for each in taken] == [[1 + 2j], [1 - 2j], [2.0], [-2.0]]


def test_a_snapshot_stays_as_it_was_and_tied_weights_stay_tied() -> None:
    weight = torch.ones(2)
    copy = Snapshot().take({"a": weight, "b": weight, "part": weight[:1]}, "the state")
    weight.zero_()
    assert copy["a"].tolist() == [1, 1]
    assert copy["b"] is copy["a"]
    assert copy["part"].tolist() == [1]


def of_two_ranks(folder: Path, step: int) -> None:
    """A generation as two ranks with sharded models write it."""
    generator = torch.Generator().manual_seed(step)
    parts = {"model.pt": {"w": {"pieces": step}}, "training.pt": {"step": step}}
    for rank in (0, 1):
        parts[f"shard-{rank}.pt"] = {"w": torch.randn(3, generator=generator)}
        parts[f"rank-{rank}.pt"] = {"random": torch.randn(2, generator=generator)}
    save(folder, step, parts)


@pytest.mark.parametrize("kind", DAMAGES)
def test_with_broken_pieces_the_one_before_is_taken_and_one_line_says_why(tmp_path: Path, kind: str) -> None:
    """Also of pieces that are whole by themselves: of another save or another run, or each in the other's place."""
    of_two_ranks(tmp_path / "saved", 1)
    of_two_ranks(tmp_path / "saved", 2)
    parts = set()
    for seed in range(12):
        folder = Path(shutil.copytree(tmp_path / "saved", tmp_path / str(seed)))
        parts.add(spoil(folder, kind, random.Random(seed)))
        generation, (line,) = newest_intact(folder)
        assert generation.path.name == "step-1"
        assert re.fullmatch(
            r"checkpoint step-2 is damaged \(.+\), set aside as damaged-step-2-1; falling back to step-1",
            line,
        )
    assert any(name.startswith("shard-") for name in parts)


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sync, rename = os.fsync, files._rename

    def synced(descriptor: int) -> None:
        seen.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().relative_to(tmp_path)}")
        sync(descriptor)

    def renamed(temporary: Path, path: Path) -> None:
        seen.append(f"name {path.relative_to(tmp_path)}")
        rename(temporary, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(files, "_rename", renamed)
    (tmp_path / "step-3").mkdir()
    checkpoint.commit(tmp_path, 3, {}, {})
    whole = ["sync step-3/manifest.json.tmp", "name step-3/manifest.json", "sync step-3", "sync ."]
    assert seen == whole
    files.write_json(tmp_path / "stop.json", {})
    assert seen[4:] == ["sync stop.json.tmp", "name stop.json", "sync ."]
