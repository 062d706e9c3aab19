"""What cannot be saved, put back or evaluated ends a training after its first step, and trying that out leaves no trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training import files
from slurmgpu.training.errors import TrainingError

from .conftest import RunFolder, new_run


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("path", r"training.pt\['schedule'\]\['kept'\] is a PosixPath, which a checkpoint cannot hold"),
        ("bytes", r"training.pt\['schedule'\]\['kept'\] is a bytes, which"),
        ("set", r"training.pt\['schedule'\]\['kept'\] is a set, which"),
        ("range", r"training.pt\['schedule'\]\['kept'\] is a range, which"),
        ("expanded", r"model \(Sequential\) does not take its own state back"),
    ],
)
def test_what_no_checkpoint_can_hold_ends_it_after_one_step(run: RunFolder, what: str, reason: str) -> None:
    run.write("Unsavable", epochs=3, batch_size=20, log_every=1, config={"what": what})
    with pytest.raises(TrainingError, match=reason) as refused:
        run.here()
    assert "after its first step" in str(refused.value)
    assert run.checkpoints() == []
    assert [line["step"] for line in run.metrics("train")] in ([], [1])


def test_what_can_be_saved_is_trained(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A sparse buffer, for one; the log says what a checkpoint costs."""
    run.write("Unsavable", batch_size=20, config={"what": "sparse"})
    run.here()
    assert run.checkpoints() == ["step-5"]
    out = capsys.readouterr().out
    assert out.count("a checkpoint takes ") == 1
    assert "of which the training stands still" in out


def test_a_part_that_comes_back_altered_is_named(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write("Forgetful", batch_size=20)
    run.here()
    assert "warning: schedule['last_epoch'] is not as it was after" in capsys.readouterr().out


def test_a_mistake_in_evaluate_is_found_after_the_first_step_and_costs_none(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write("Tested", epochs=3, batch_size=20, log_every=1)
    monkeypatch.setenv("SMALL_TEST_FAULT", "raise:1")
    with pytest.raises(ValueError, match="a mistake in evaluate"):
        run.here()
    monkeypatch.delenv("SMALL_TEST_FAULT")
    assert run.checkpoints() == ["step-1"]
    run.here()
    assert run.checkpoints()[0] == "step-10"


def test_a_disk_that_does_not_take_the_trial_is_said_and_the_training_goes_on(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, writes = files._sync, iter(range(100))

    def full(file: Any) -> None:
        if next(writes) == 2:  # after lock and count of starts
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(files, "_sync", full)
    run.write(batch_size=20)
    run.here()
    assert run.checkpoints() == ["step-5"]
    said = "warning: a checkpoint could not be written on trial (No space left on device): training goes on"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_trying_out_changes_no_bit(tmp_path: Path, workers: int) -> None:
    ends = []
    for sanity in (True, False):
        run = new_run(tmp_path, str(sanity))
        run.write("Counting", epochs=3, batch_size=20, log_every=1, workers=workers, sanity=sanity)
        run.here()
        evals = [line["values"] | {"seconds": 0} for line in run.metrics("eval")]
        rank = torch.load(run.path / "checkpoints/step-15/rank-0.pt", weights_only=True)
        ends.append((run.losses(), evals, str(rank["random"]), run.parameters(), run.checkpoints()))
    assert ends[0][:3] == ends[1][:3]
    assert ends[0][4] == ends[1][4] == ["step-10", "step-15"]
    for name, value in ends[0][3].items():
        assert torch.equal(value, ends[1][3][name]), name


def test_what_an_earlier_start_has_saved_and_evaluated_is_not_tried_again(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write("Tested", epochs=2, batch_size=20, checkpoint_steps=2)
    run.here(SLURMGPU_MAX_STEPS="5")
    capsys.readouterr()
    monkeypatch.setenv("SMALL_TEST_FAULT", "raise:5")  # an evaluation has two batches of 20
    run.here()
    assert "a checkpoint takes" not in capsys.readouterr().out


@pytest.mark.long
def test_two_processes_end_together_with_the_reason(run: RunFolder) -> None:
    run.write("Unsavable", strategy="ddp", batch_size=20, config={"what": "set"})
    ended = run.ranks(2)
    assert ended.codes == [1, 1]
    assert ended.err.count("is a set, which a checkpoint cannot hold") == 2
