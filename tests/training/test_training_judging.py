"""The best checkpoint, and trainings that end because they do not get better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.training import files
from slurmgpu.training.errors import SettingsError
from slurmgpu.training.saving import checkpoint

from .conftest import RunFolder, new_run, same

TASKS = Path(__file__).with_name("measured.py")
BEST = {"metric": "score", "mode": "max"}
STOP = {"metric": "score", "mode": "max", "patience": 2}
SCORES = [1, 3, 2, 4, 5, 4, 4, 4, 4, 4]
SETTINGS: dict[str, Any] = {
    "epochs": 2, "batch_size": 10, "lr": 0.05, "log_every": 1, "keep": 1, "evaluate_every": None, "evaluate_steps": 2,
    "checkpoint_every": 100, "config": {"scores": SCORES},
}  # fmt: skip


def write(run: RunFolder, scores: list[Any] = SCORES, **settings: Any) -> None:
    run.write(f"{TASKS}:Scripted", **{**SETTINGS, "config": {"scores": scores}, **settings})


def manifest(run: RunFolder, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (run.path / "checkpoints" / f"step-{step}" / "manifest.json").read_text()
    )
    return found


def last_step(run: RunFolder) -> int:
    return max(int(name.removeprefix("step-")) for name in run.checkpoints())


def alike(one: RunFolder, other: RunFolder) -> bool:
    equal = same(one.parameters(), other.parameters())
    names = ("best", "early_stop", "complete", "results")
    known = [[manifest(each, last_step(each))[name] for name in names] for each in (one, other)]
    return equal and last_step(one) == last_step(other) and known[0] == known[1]


@pytest.mark.parametrize(
    ("best", "scores", "step"),
    [
        (BEST, SCORES, 10),
        ({"metric": "cost", "mode": "min"}, SCORES, 10),
        ({"metric": "score", "mode": "min"}, SCORES, 2),
        (BEST, [5, 5, 5, 5, 5, 5, 5, 5, 5, 5], 2),
        (BEST, ["nan", 1, "inf", "nan", 0, 0, 0, 0, 0, 0], 4),
        (BEST, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 20),
    ],
)
def test_the_best_and_newest_checkpoint_stay(
    run: RunFolder, best: dict[str, str], scores: list[Any], step: int
) -> None:
    write(run, scores, best=best)
    run.here()
    assert run.checkpoints() == sorted({"step-20", f"step-{step}"})
    record = manifest(run, 20)["best"]
    assert (record["metric"], record["mode"], record["step"]) == (best["metric"], best["mode"], step)
    assert record["value"] == float(scores[step // 2 - 1]) * (-1 if best["metric"] == "cost" else 1)


def test_without_a_finite_value_no_checkpoint_is_the_best(run: RunFolder) -> None:
    write(run, ["nan"] * 10, best=BEST)
    run.here()
    assert (run.checkpoints(), manifest(run, 20)["best"]) == (["step-20"], None)


@pytest.mark.parametrize("stop", [4, 9, 11, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.chosen
def test_a_resumed_training_keeps_the_best_that_an_uninterrupted_one_keeps(tmp_path: Path, stop: int) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    for each in (run, other):
        write(each, best=BEST, sanity=False)
    other.here()
    ended = run.ranks(1, MEASURED_FAULT=f"SIGTERM:{stop}:0") if stop == 3 else None
    if ended is None:
        run.here(SLURMGPU_MAX_STEPS=str(stop))
    else:
        assert ended.codes == [75], ended.err  # during the evaluation of step 6
    run.here()
    assert run.checkpoints() == other.checkpoints() == ["step-10", "step-20"]
    assert alike(run, other)


def test_a_generation_fallen_back_to_has_its_best(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest is the best, and damaged: the one before has the best of its own time still."""
    write(run, [1, 3, 2, 3, 5, 4, 4, 4, 4, 4], best=BEST, keep=2, checkpoint_steps=4, keep_every=4)
    run.here(SLURMGPU_MAX_STEPS="10")
    assert "step-4" in run.checkpoints()
    assert manifest(run, 10)["best"]["step"] == 10
    (run.path / "checkpoints" / "step-10" / "model.pt").write_bytes(b"")
    run.here(SLURMGPU_MAX_STEPS="9")
    assert "is damaged" in capsys.readouterr().out
    assert manifest(run, 9)["best"] == {**BEST, "step": 4, "value": 3.0}


def test_what_any_generation_that_stays_calls_the_best_is_not_pruned(tmp_path: Path) -> None:
    for step, best in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 5)):
        (tmp_path / f"step-{step}").mkdir()
        checkpoint.commit(tmp_path, step, {}, {"best": {"step": best}})
    checkpoint.prune(tmp_path, 2, None)
    assert sorted(path.name for path in checkpoint.folders(tmp_path)) == ["step-3", "step-4", "step-5"]
    checkpoint.prune(tmp_path, 1, None)
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["step-5"]


def test_a_best_checkpoint_that_could_not_be_written_is_none(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of step 10 fails; that of step 4 is kept, until one is better than it."""
    write(run, [1, 3, 2, 3, 5, 4, 4, 2, 2, 2], best=BEST, sanity=False)
    written = files.write_whole

    def full(path: Path, fill: Any) -> Any:
        if path.parent.name == "step-10":
            raise OSError(28, "No space left on device")
        return written(path, fill)

    monkeypatch.setattr(checkpoint, "write_whole", full)
    run.here()
    assert "checkpoint of step 10 failed" in capsys.readouterr().out
    assert run.checkpoints() == ["step-20", "step-4"]
    assert manifest(run, 20)["best"]["step"] == 4


def test_a_best_checkpoint_that_is_gone_is_said(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, best=BEST)
    run.here(SLURMGPU_MAX_STEPS="13")
    (run.path / "checkpoints" / "step-10").rename(run.path / "mine")
    run.here()
    assert (
        "the best checkpoint, step-10, is gone: the next evaluation is the best one"
        in capsys.readouterr().out
    )
    assert manifest(run, 20)["best"]["step"] == 14


def test_another_metric_starts_over_and_none_keeps_the_best(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, best=BEST)
    run.here(SLURMGPU_MAX_STEPS="12")
    write(run, best=None)
    run.here(SLURMGPU_MAX_STEPS="14")
    assert run.checkpoints() == ["step-10", "step-14"]
    write(run, best={"metric": "cost", "mode": "max"})
    run.here()
    assert "best is of cost (max) now, and was of score (max): it begins anew" in capsys.readouterr().out
    assert manifest(run, 20)["best"] == {"metric": "cost", "mode": "max", "step": 16, "value": -4.0}


@pytest.mark.parametrize(("setting", "wanted"), [("best", BEST), ("early_stop", STOP)])
def test_a_missing_metric_is_refused_at_once(run: RunFolder, setting: str, wanted: dict[str, Any]) -> None:
    write(run, **{setting: {**wanted, "metric": "accuracy"}})
    with pytest.raises(
        SettingsError, match=f"{setting}.metric is 'accuracy', and the evaluation has 'score', 'cost'"
    ):
        run.here()
    assert not run.checkpoints()


def test_a_metric_of_later_batches_alone_is_not_refused(run: RunFolder) -> None:
    run.write(f"{TASKS}:Rare", **{**SETTINGS, "batch_size": 25}, best={"metric": "val/rare", "mode": "max"})
    run.here()
    assert [line["values"]["val/rare"] for line in run.metrics("eval")] == [1.0] * 4
    assert manifest(run, 8)["best"]["step"] == 2


def test_without_the_trial_it_is_refused_at_the_first_evaluation_and_no_step_is_lost(run: RunFolder) -> None:
    write(run, best={**BEST, "metric": "accuracy"}, sanity=False)
    with pytest.raises(SettingsError, match="'accuracy'"):
        run.here()
    assert run.checkpoints() == ["step-2"]
    write(run, best=BEST, sanity=False)
    run.here()
    assert run.checkpoints() == ["step-10", "step-20"]
    assert [line["step"] for line in run.metrics("eval")] == list(range(2, 21, 2))


def test_a_task_without_evaluations_has_no_best(run: RunFolder) -> None:
    run.write(f"{TASKS}:Untested", **SETTINGS, best=BEST)
    with pytest.raises(SettingsError, match="best judges evaluations, and this task has none"):
        run.here()


@pytest.mark.parametrize(
    ("stop", "step"),
    [
        (STOP, 14),
        ({**STOP, "patience": 3}, 16),
        ({**STOP, "min_delta": 2.5}, 6),
        ({**STOP, "patience": 9}, 20),
    ],
)
def test_a_training_ends_when_it_has_not_got_better_for_long_enough(
    run: RunFolder, stop: dict[str, Any], step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, early_stop=stop)
    run.here()
    facts = manifest(run, step)
    assert (last_step(run), facts["complete"]) == (step, True)
    ((end,),) = [run.metrics("end")]
    assert end["values"]["reason"] == ("epochs" if step == 20 else "early_stop")
    said = capsys.readouterr().out
    assert ("stopped early: no better score in" in said) == (step < 20)
    run.here()
    assert "already done" in capsys.readouterr().out
    assert len(run.metrics("start")) == 1


def test_values_never_finite_use_up_the_patience(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, ["nan"] * 10, early_stop=STOP)
    run.here()
    assert last_step(run) == 4
    assert "stopped early: score was not finite in 2 evaluations" in capsys.readouterr().out


@pytest.mark.parametrize("stop", [10, 12])
def test_a_stop_on_the_way_to_the_end_changes_nothing_of_it(tmp_path: Path, stop: int) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    for each in (run, other):
        write(each, early_stop=STOP, best=BEST)
    other.here()
    run.here(SLURMGPU_MAX_STEPS=str(stop))
    run.here()
    assert last_step(run) == 14
    assert alike(run, other)


def test_with_more_patience_it_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    write(run, early_stop=STOP, best=BEST)
    run.here()
    for each in (run, other):
        write(each, early_stop={**STOP, "patience": 4}, best=BEST)
        each.here()
    assert last_step(run) == 18
    assert alike(run, other)
    assert run.losses() == other.losses()


def test_with_less_patience_it_ends_where_it_is(run: RunFolder) -> None:
    write(run, early_stop={**STOP, "patience": 4})
    run.here(SLURMGPU_MAX_STEPS="14")
    write(run, early_stop=STOP)
    run.here()
    assert (last_step(run), len(run.metrics("start"))) == (14, 1)


@pytest.mark.long
def test_two_ranks_end_alike_and_a_kill_before_the_last_save_counts_loses_nothing(tmp_path: Path) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    for each in (run, other):
        # Two micro-batches a step and rank: the model has seen a step's ten samples in one.
        write(each, early_stop=STOP, best=BEST, sanity=False)
    assert other.ranks(2).codes == [0, 0]
    ended = run.ranks(
        2, kill_on_bad_exit=True, MEASURED_FAULT="SIGKILL:7:1"
    )  # in the evaluation that decides
    assert ended.codes != [0, 0]
    assert run.ranks(2).codes == [0, 0]
    assert last_step(run) == 14
    assert run.checkpoints() == other.checkpoints()
    assert alike(run, other)
