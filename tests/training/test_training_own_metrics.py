"""What a task's loss measures beside the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurmgpu.training.errors import TrainingError

from .conftest import RunFolder, new_run

TASKS = Path(__file__).with_name("measured.py")
SETTINGS: dict[str, Any] = {"batch_size": 20, "accumulate": 2, "lr": 0.05, "log_every": 2, "sanity": False}


def write(run: RunFolder, kind: str = "", task: str = "Own", **settings: Any) -> None:
    run.write(f"{TASKS}:{task}", **{**SETTINGS, "config": {"kind": kind}, **settings})


def lines(run: RunFolder, *names: str) -> list[list[Any]]:
    return [[line["step"], *(line["values"].get(name) for name in names)] for line in run.metrics("train")]


def test_own_values_are_means_over_an_interval_and_change_nothing(tmp_path: Path) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    write(run)
    write(other, "none")
    for each in (run, other):
        each.here()
    assert run.losses() == other.losses()
    for _, loss, same, near, samples, half in lines(run, "loss", "same", "near", "samples", "half"):
        assert same == pytest.approx(loss, rel=1e-12)
        assert (samples, half) == (10, 0.5)
        assert near * 40 == pytest.approx(round(near * 40))
    assert "same" not in other.metrics("train")[0]["values"]


def test_a_loss_that_is_a_sum_has_own_values_too(run: RunFolder) -> None:
    write(run, "counted")
    run.here()
    assert all(same == pytest.approx(loss, rel=1e-12) for _, loss, same in lines(run, "loss", "same"))


@pytest.mark.parametrize("stop", [1, 3])
def test_a_resume_in_an_interval_loses_none(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    for each in (run, other):
        write(each, log_every=4, epochs=2, evaluate_every=None, checkpoint_steps=1, keep=20)
        each.here()
    # As a kill would leave it.
    for path in (run.path / "checkpoints").iterdir():
        if path.name.startswith("step-") and int(path.name[5:]) > stop:
            path.rename(path.with_name(f"mine-{path.name}"))
    (run.path / "metrics.jsonl").unlink()
    run.here()
    assert lines(run, "loss", "near", "same") == lines(other, "loss", "near", "same")


def test_the_loss_alone_evaluates_own_values(run: RunFolder) -> None:
    write(run, task="Unevaluated")
    run.here()
    (line,) = run.metrics("eval")
    assert line["values"]["same"] == pytest.approx(line["values"]["loss"])
    assert line["values"]["half"] == 0.5
    assert 0 <= line["values"]["near"] <= 1


def test_one_that_is_not_finite_is_null_and_ends_nothing(run: RunFolder) -> None:
    write(run, "nan")
    run.here()
    assert [half for _, half in lines(run, "half")] == [None, 0.5, 0.5]
    assert run.checkpoints() == ["step-5"]


def test_of_a_step_that_is_left_out_they_are_left_out_too(run: RunFolder) -> None:
    write(run, "skip", nonfinite="skip")
    run.here()
    assert [half for _, half in lines(run, "half")] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["epoch", "loss.x"])
def test_a_name_that_a_line_has_already_is_refused(run: RunFolder, kind: str) -> None:
    write(run, kind)
    with pytest.raises(TrainingError, match=f"loss returns '{kind}', and metrics.jsonl has that already"):
        run.here()


def test_a_name_that_is_late_is_left_out_and_said(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, "late", accumulate=1, log_every=1)
    run.here()
    assert capsys.readouterr().out.count("loss returns 'late' for the first time: it is left out") == 1
    assert all(late is None and half == 0.5 for _, late, half in lines(run, "late", "half"))


def test_each_update_of_a_step_may_have_its_own(run: RunFolder) -> None:
    write(run, task="Both")
    run.here()
    assert all((half, again) == (0.5, 2.0) for _, half, again in lines(run, "half", "again"))


@pytest.mark.long
def test_values_are_means_over_all_ranks_whatever_names_each_has(tmp_path: Path) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    write(run, "uneven", accumulate=1, evaluate_every=None)
    write(other, evaluate_every=None)
    assert run.ranks(2).codes == [0, 0]
    other.here()
    for mine, theirs in zip(
        lines(run, "near", "samples", "half"), lines(other, "near", "samples", "half"), strict=True
    ):
        assert mine == pytest.approx(theirs, rel=0.2)
    assert [one for _, one in lines(run, "one")] == [7.0, 7.0, 7.0]
