"""Every step safe: what is kept on the nodes is gone on from after a kill, and nothing else ever is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training import trainer
from slurmgpu.training.errors import NotFinite, TrainingError
from slurmgpu.training.saving import replicas
from slurmgpu.training.saving.replicas import neighbour
from slurmgpu.training.watching.metrics import Metrics

from .conftest import RunFolder, new_run, same

SETTINGS: dict[str, Any] = {
    "epochs": 2, "batch_size": 20, "lr": 0.05, "log_every": 1, "checkpoint_every": 99, "sanity": False, "workers": 0,
    "checkpoint_steps": 1, "checkpoint_shared_steps": 99, "keep_every": 5,
}  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's own folder."""
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


def write(run: RunFolder, node: Path, **settings: Any) -> None:
    run.write("Restless", **{**SETTINGS, "checkpoint_node_folder": "$NODE", **settings})


def end_in(run: RunFolder, node: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until a step fails: what is then left is what a kill there would leave."""
    monkeypatch.setenv("SMALL_FAULT", f"raise:{step}:0")
    with pytest.raises(ValueError, match="a mistake in the task"):
        run.here(NODE=str(node))
    monkeypatch.setenv("SMALL_FAULT", "")


def kept(node: Path) -> list[Path]:
    return sorted(node.glob("*/*/step-*"))


def beginnings(run: RunFolder) -> list[int]:
    return [line["step"] for line in run.metrics("start")]


def test_the_step_before_the_kill_is_gone_on_from_as_if_nothing_had_been(
    tmp_path: Path,
    run: RunFolder,
    node: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Losses in hex and weights are those of a training that was left alone; nothing stays on the node."""
    undisturbed = new_run(tmp_path, "undisturbed")
    write(undisturbed, node)
    undisturbed.here(NODE=str(node))
    write(run, node)
    end_in(run, node, 4, monkeypatch)
    end_in(run, node, 5, monkeypatch)  # counted by this start's own losses
    assert run.checkpoints() == ["step-3", "step-5"]
    run.here(NODE=str(node))
    assert beginnings(run) == [0, 3, 7]
    said = capsys.readouterr().out
    assert "step 7 was kept on the nodes, and is now checkpoints/step-7" in said
    assert [each.hex() for each in run.losses()] == [each.hex() for each in undisturbed.losses()]
    assert same(run.parameters(), undisturbed.parameters())
    assert list(node.glob("*/*")) == []
    assert not (run.path / "checkpoints" / "replicas.json").exists()


def test_a_file_that_is_not_as_it_was_written_is_not_gone_on_from(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, node)
    end_in(run, node, 9, monkeypatch)
    (file,) = kept(node)
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-9] + b"\1" + whole[-8:], b"0" + whole[1:], whole[:100], b""):
        file.write_bytes(damaged)
        if damaged != whole:
            assert newest_of(run, node) == 5
    assert "step 8, kept on the nodes, is not gone on from" in capsys.readouterr().out
    file.write_bytes(whole)
    assert newest_of(run, node) == 8


def newest_of(run: RunFolder, node: Path) -> int:
    """The step from which a start would go on; the files on the node and the run directory stay as they are."""
    before = {path: path.read_bytes() for path in [*kept(node), run.path / "checkpoints" / "replicas.json"]}
    with contextlib.suppress(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas.Replicas, "begin", lambda *_given: None)
        patch.setattr(trainer.Trainer, "train", _interrupt)
        run.here(NODE=str(node))
    for path, data in before.items():
        path.write_bytes(data)
    steps = [int(name.removeprefix("step-")) for name in run.checkpoints()]
    return max(steps, default=0)


def _interrupt(*_given: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("other", ["schema", "token", "key"])
def test_a_file_of_another_run_is_not_gone_on_from(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Even under the right name."""
    write(run, node)
    end_in(run, node, 9, monkeypatch)
    (file,) = kept(node)
    _, text, rest = file.read_bytes().split(b"\n", 2)
    head = json.loads(text)
    head[other] = [7, 1, 0] if other == "key" else "another"
    text = json.dumps(head).encode()
    seal = replicas.hashlib.sha256(text).hexdigest().encode()
    file.write_bytes(b"\n".join([seal, text, rest]))
    assert newest_of(run, node) == 5


def test_what_an_earlier_start_has_left_is_never_gone_on_from(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start after it has begun on another node; then the first node is back."""
    write(run, node)
    end_in(run, node, 9, monkeypatch)
    elsewhere = node.with_name("elsewhere")
    elsewhere.mkdir()
    end_in(run, elsewhere, 2, monkeypatch)
    assert beginnings(run) == [0, 5]
    for path in kept(elsewhere):
        path.unlink()
    run.here(NODE=str(node))
    assert beginnings(run) == [0, 5, 5]


def test_a_newer_one_in_the_run_wins(run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, node)
    end_in(run, node, 4, monkeypatch)
    (file,) = kept(node)
    record = (run.path / "checkpoints" / "replicas.json").read_bytes()
    left = file.parent, file.name, file.read_bytes()
    end_in(run, node, 4, monkeypatch)
    left[0].mkdir()
    (left[0] / left[1]).write_bytes(left[2])
    (run.path / "checkpoints" / "replicas.json").write_bytes(record)
    assert newest_of(run, node) == 5


def test_who_takes_checkpoints_away_or_begins_anew_does_not_get_them_back(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, node)
    end_in(run, node, 9, monkeypatch)
    (run.path / "checkpoints" / "step-5").rename(run.path / "away")
    assert newest_of(run, node) == 0
    assert "checkpoints/step-5, which came before it, is gone" in capsys.readouterr().out
    write(run, node, resume=False)
    end_in(run, node, 2, monkeypatch)
    assert beginnings(run) == [0, 0]


def test_a_folder_open_to_others_is_not_used(
    run: RunFolder, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be another user's who was there first: the training goes on without, and says so."""
    taken = node / f"slurmgpu-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    write(run, node)
    run.here(NODE=str(node))
    assert list(taken.iterdir()) == []
    said = capsys.readouterr().out
    assert (
        f"steps cannot be kept on the nodes (rank 0 on : {taken} is not a folder that this user alone may"
        in said
    )
    assert "done: 2 epochs" in said
    taken.rmdir()
    taken.symlink_to(run.path)
    write(run, node, epochs=3)
    run.here(NODE=str(node))
    assert "is not a folder that this user alone may enter" in capsys.readouterr().out


def test_files_on_a_node_are_private(run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, node)
    end_in(run, node, 3, monkeypatch)
    (file,) = kept(node)
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file.parent.parent)] == [0o700, 0o700]


def test_what_nobody_came_back_for_is_removed_after_a_week(run: RunFolder, node: Path) -> None:
    user = node / f"slurmgpu-{os.getuid()}"
    user.mkdir(mode=0o700)
    for name, days in (("old", 8), ("new", 6)):
        (user / name).mkdir()
        then = replicas.time.time() - days * 86400
        os.utime(user / name, (then, then))
    write(run, node)
    run.here(NODE=str(node))
    assert [path.name for path in user.iterdir()] == ["new"]


def test_a_line_of_metrics_is_there_only_when_its_step_cannot_be_lost(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = replicas.Replicas.keep

    def fails(self: Any, step: int, *given: Any) -> Any:
        if step == 4:
            raise RuntimeError("connection closed by peer")
        return real(self, step, *given)

    write(run, node)
    with monkeypatch.context() as patch:
        patch.setattr(replicas.Replicas, "keep", fails)
        with pytest.raises(RuntimeError, match="closed by peer"):
            run.here(NODE=str(node))
    assert [line["step"] for line in run.metrics("train")] == [1, 2, 3]
    run.here(NODE=str(node))
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 11))


def test_a_line_that_a_kill_left_unwritten_is_written_by_the_next_start(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the copy of a step and its line; and a line that is there already is not written twice."""
    real = Metrics.release

    def fails(self: Any) -> None:
        if self.waiting() and json.loads(self.waiting()[0])["step"] == 4:
            raise KeyboardInterrupt
        real(self)

    write(run, node)
    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "release", fails)
        with pytest.raises(KeyboardInterrupt):
            run.here(NODE=str(node))
    assert [line["step"] for line in run.metrics("train")] == [1, 2, 3]
    end_in(run, node, 1, monkeypatch)
    assert [line["step"] for line in run.metrics("train")] == [1, 2, 3, 4]
    run.here(NODE=str(node))
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 11))


def test_a_full_node_costs_copies_and_not_the_training(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = replicas._put

    def full(path: Path, data: bytes) -> None:
        if path.name.startswith(("step-3.", "step-4.")):
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(replicas, "_put", full)
    write(run, node)
    end_in(run, node, 5, monkeypatch)
    assert [path.name for path in kept(node)] == ["step-2.rank-0-of-1.by-0"]
    assert (
        capsys.readouterr().out.count("could not be kept on the nodes (rank 0 on : No space left on device)")
        == 1
    )
    run.here(NODE=str(node))
    assert beginnings(run) == [0, 2]


def test_a_step_that_cannot_be_brought_ends_the_start_and_stays_on_the_node(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, node)
    end_in(run, node, 9, monkeypatch)

    def full(*_given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replicas, "write_whole", full)
        with pytest.raises(TrainingError, match="nothing is lost: start again on the same nodes"):
            run.here(NODE=str(node))
    run.here(NODE=str(node))
    assert beginnings(run) == [0, 8]


def test_a_state_that_is_not_finite_is_not_kept(run: RunFolder, node: Path) -> None:
    write(run, node, lr=1e30, log_every=100)
    with pytest.raises(NotFinite):
        run.here(NODE=str(node))
    for path in kept(node):
        name = path.name.partition(".")[0]
        _, parts = replicas._opened(path, path.parent.name, replicas._Key(int(name[5:]), 1, 0))
        weights = torch.load(replicas.io.BytesIO(parts["model.pt"]), weights_only=True)
        assert all(each.isfinite().all() for each in weights.values())


def test_the_best_checkpoint_counts_before_a_later_step_is_kept(
    run: RunFolder, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start from the later step would not make it again; nor one that is kept for good."""
    write(run, node, keep_every=2, keep=99)
    for step in (4, 4, 4):
        end_in(run, node, step, monkeypatch)
    assert {"step-2", "step-4", "step-6", "step-8"} <= set(run.checkpoints())


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["a"], [None]), (["a", "a"], [None, None]), (["a", "b"], [1, 0]), (["a", "a", "b", "b"], [2, 3, 0, 1]),
        (["a", "b", "a", "b"], [1, 0, 3, 2]), (["a", "a", "a", "b"], [3, 3, 3, 0]), (["a", "b", "c"], [1, 2, 0]),
    ],
)  # fmt: skip
def test_each_rank_has_a_copy_on_the_next_node(hosts: list[str], expected: list[int | None]) -> None:
    assert [neighbour(hosts, rank) for rank in range(len(hosts))] == expected


@pytest.mark.long
@pytest.mark.chosen
def test_a_lost_node_costs_no_step_where_another_one_has_a_copy(tmp_path: Path) -> None:
    """Two processes on two pretend nodes, each with a folder of its own; both are killed, and one folder is gone."""
    undisturbed, killed = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "killed")
    undisturbed.write("Restless", **{**SETTINGS, "checkpoint_steps": 99, "checkpoint_shared_steps": None})
    undisturbed.ranks(2)
    killed.write("Restless", **{**SETTINGS, "checkpoint_node_folder": f"{tmp_path}/$SLURMD_NODENAME"})
    for node in ("node-0", "node-1"):
        (tmp_path / node).mkdir()
    assert -9 in killed.ranks(2, apart=True, kill_on_bad_exit=True, SMALL_FAULT="SIGKILL:4:0").codes
    shutil.rmtree(tmp_path / "node-0")
    (tmp_path / "node-0").mkdir()
    assert killed.ranks(2, apart=True).codes == [0, 0]
    assert beginnings(killed) == [0, 3]
    assert killed.losses() == undisturbed.losses()
