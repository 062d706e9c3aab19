"""What a task is told and when, and the state of its own: with stops and kills in between, and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.errors import TrainingError

from .conftest import RunFolder, new_run
from .small import Line

TASKS = Path(__file__).with_name("hooked.py")


def write(run: RunFolder, task: str, **settings: Any) -> None:
    run.write(f"{TASKS}:{task}", **{"batch_size": 20, "lr": 0.05, "log_every": 1, **settings})


def told(run: RunFolder, rank: int = 0) -> list[list[Any]]:
    lines = (run.path / f"told-{rank}").read_text().splitlines()
    return [json.loads(line)[:-1] for line in lines]


def last(run: RunFolder, part: str) -> Any:
    """A part of the newest checkpoint."""
    newest = max(run.checkpoints(), key=lambda name: int(name.rpartition("-")[2]))
    return torch.load(run.path / "checkpoints" / newest / part, weights_only=True)


def alike(one: RunFolder, other: RunFolder, *names: str) -> None:
    """The same bits: the losses and rates of each step, and everything in the newest checkpoint."""
    for name in ("loss", *(names or ["learning_rate"])):
        mine, others = (
            {line["step"]: line["values"].get(name) for line in each.metrics("train")}
            for each in (one, other)
        )
        assert mine == others, name
    for part in ("model.pt", "training.pt", "rank-0.pt"):
        assert repr(last(one, part)) == repr(last(other, part)), part


@pytest.fixture
def place(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The run directory, as tasks that run in this process find it."""
    monkeypatch.setenv("SLURMGPU_RUN_DIR", str(run.path))
    return run


def test_a_task_is_told_of_each_place_in_order(place: RunFolder) -> None:
    write(place, "Told", epochs=2)
    place.here()
    first = [["step", step] for step in range(1, 6)]
    second = [["step", step] for step in range(6, 11)]
    found = told(place)
    assert [each for each in found if each[0] != "save"] == [
        ["start", 20, "Sequential"],
        *first,
        ["epoch", 1, ["loss"]],
        *second,
        ["epoch", 2, ["loss"]],
        ["end", ["loss"]],
    ]
    assert [each for each in found if each[0] == "save"] == [
        ["save", "step-5", True],
        ["save", "step-10", True],
    ]


def test_what_a_task_does_if_told_survives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws random numbers in all places; those of starts and saves, which come with stops, change nothing."""
    runs = new_run(tmp_path, "whole"), new_run(tmp_path, "parts")
    for each, limits in ((runs[0], ["12"]), (runs[1], ["3", "5", "8", "12"])):
        monkeypatch.setenv("SLURMGPU_RUN_DIR", str(each.path))
        write(each, "Told", epochs=3, max_steps=12, checkpoint_steps=4 if len(limits) > 1 else None)
        for limit in limits:
            each.here(SLURMGPU_MAX_STEPS=limit)
    whole, parts = ([each for each in told(run) if each[0] in ("step", "epoch")] for run in runs)
    assert whole == parts
    assert [each[0] for each in told(runs[1])].count("start") == 4
    alike(*runs)


@pytest.mark.parametrize(
    ("task", "who"),
    [("Thaws", "on_epoch_end"), ("ThawsAtAStep", r"the task \(on_step_end"), ("ThawsAtTheStart", "on_start")],
)
def test_a_task_that_changes_which_parameters_are_trained_is_refused(
    run: RunFolder, task: str, who: str
) -> None:
    write(run, task)
    with pytest.raises(TrainingError, match=f"{who}.* has changed the parameters to train"):
        run.here()


def test_a_misspelt_name_is_told_with_the_right_one(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, "Misnamed")
    run.here()
    out = capsys.readouterr().out
    assert "nothing calls on_step_ends; did you mean on_step_end?" in out
    assert "nothing calls on_validation_epoch_end; did you mean on_epoch_end?" in out
    assert "nothing calls optimiser; did you mean optimizer?" in out
    assert "nothing calls validation_step; did you mean evaluate?" in out
    assert "on_gpu" not in out
    assert "schedules_of" not in out


@pytest.mark.long
@pytest.mark.chosen
def test_each_rank_has_its_state_back_after_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And with another number of processes that of rank 0, which is said; on_save is rank 0's alone."""
    whole, parts = new_run(tmp_path, "whole"), new_run(tmp_path, "parts")
    for each in (whole, parts):
        write(each, "Remembering", epochs=3, checkpoint_steps=1)
    assert whole.ranks(2).codes == [0, 0]
    assert parts.ranks(2, SMALL_FAULT="SIGUSR1:4:1").codes == [75, 75]
    assert -9 in parts.ranks(2, kill_on_bad_exit=True, SMALL_FAULT="SIGKILL:5:1").codes
    assert parts.ranks(2).codes == [0, 0]
    for rank in (0, 1):
        mine, others = (last(each, f"rank-{rank}.pt")["task"] for each in (whole, parts))
        assert mine["memory"] == others["memory"]
        assert torch.equal(mine["mean"], others["mean"])
    assert last(parts, "rank-1.pt")["task"]["memory"] != last(parts, "rank-0.pt")["task"]["memory"]
    assert repr(whole.parameters()) == repr(parts.parameters())
    write(parts, "Remembering", epochs=4)
    parts.here()
    assert "the task's own state is that of rank 0 on every rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("list", r"state_dict must be or return a mapping of name -> value; got a list"),
        ("set", r"rank-0.pt\['task'\]\['kept'\] is a set, which a checkpoint cannot hold"),
        ("wrong", r"task \(Unkept\) does not take its own state back.*KeyError"),
    ],
)
def test_a_state_that_cannot_be_kept_ends_it_after_one_step(run: RunFolder, what: str, reason: str) -> None:
    write(run, "Unkept", config={"what": what})
    with pytest.raises(TrainingError, match=reason):
        run.here()
    assert run.checkpoints() == []


def test_a_save_from_before_the_state_begins_anew(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write("Restless", batch_size=20, epochs=1)
    run.here()
    write(run, "Remembering", epochs=2)
    run.here()
    assert "the task's own state begins anew, because step-5 was saved without one" in capsys.readouterr().out


def rates(run: RunFolder) -> list[float]:
    return list({line["step"]: line["values"]["learning_rate"] for line in run.metrics("train")}.values())


def test_a_schedule_by_epochs_moves_on_with_the_epochs_alone(run: RunFolder) -> None:
    """Steps of 30 out of 100 samples: the fourth, seventh and tenth step complete an epoch."""
    write(run, "Falling", epochs=6, batch_size=30, lr=0.8)
    run.here()
    assert [rates(run).count(each) for each in (0.8, 0.4, 0.2)] == [7, 7, 6]
    assert rates(run) == sorted(rates(run), reverse=True)


def test_a_schedule_by_a_metric_moves_on_with_each_evaluation_that_is_due(run: RunFolder) -> None:
    """Each fourth step, and each epoch's fifth; not with the one at the end of training, which more steps may follow."""
    write(run, "Plateau", epochs=4, lr=0.04, evaluate_steps=4, config={"metric": "loss"}, max_steps=18)
    run.here()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    alone = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.04)
    model = plateau(alone, patience=1, threshold=0.9, factor=0.5)
    evaluations = {line["step"]: line["values"]["loss"] for line in run.metrics("eval")}
    assert list(evaluations) == [4, 5, 8, 10, 12, 15, 16, 18]
    expected = []
    for step in range(1, 19):
        expected.append(alone.param_groups[0]["lr"])
        if step in evaluations and step != 18:
            model.step(evaluations[step])
    assert rates(run) == expected
    assert len(set(expected)) > 2


@pytest.mark.parametrize("task", ["Falling", "Plateau"])
def test_schedules_by_epochs_stopped_and_killed_end_bit_for_bit_the_same(tmp_path: Path, task: str) -> None:
    """Also where a training has come to an end that was then moved."""
    whole, parts = new_run(tmp_path, "whole"), new_run(tmp_path, "parts")
    settings: dict[str, Any] = {"config": {"metric": "loss"}, "evaluate_steps": 4, "checkpoint_steps": 1}
    write(whole, task, epochs=4, **settings)
    whole.here()
    for epochs, limit in ((2, "3"), (2, "5"), (2, "7"), (2, "10"), (4, "13"), (4, "20")):
        write(parts, task, epochs=epochs, **settings)
        parts.here(SLURMGPU_MAX_STEPS=limit)
    alike(whole, parts)


def test_what_a_last_evaluation_changes_is_kept_where_a_later_start_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate lowered by it, and what the task keeps: more epochs go on from there."""
    whole, parts = new_run(tmp_path, "whole"), new_run(tmp_path, "parts")
    settings: dict[str, Any] = {"lr": 0.04, "config": {"metric": "loss"}, "evaluate_every": 2}
    for run in (whole, parts):
        write(run, "Mistaken", epochs=6, **settings)
    whole.here()
    with monkeypatch.context() as patch:
        patch.setenv("HOOKED_MISTAKE", "1")
        for epochs in (2, 4, 6):
            write(parts, "Mistaken", epochs=epochs, **settings)
            with pytest.raises(ValueError, match="a mistake in evaluate"):
                parts.here()
            patch.delenv("HOOKED_MISTAKE")
            parts.here()
            patch.setenv("HOOKED_MISTAKE", "1")
    for run in (whole, parts):
        write(run, "Mistaken", epochs=8, **settings)
        run.here()
    alike(whole, parts)
    assert len(set(rates(parts))) > 1


@pytest.mark.parametrize(
    ("task", "settings", "reason"),
    [
        ("Plateau", {"config": {"metric": "accuracy"}}, "goes by 'accuracy', and the evaluation has 'loss'"),
        ("Untested", {"config": {"metric": "loss"}}, "goes by 'loss' of evaluations, and there are none"),
        ("Unnamed", {}, r"step\(\) of this one needs a metric, as in \(schedule, 'loss'\)"),
        (
            "Falling",
            {"schedule": "cosine"},
            "schedule is cosine and warmup_steps 0, and the task has an epoch_schedule",
        ),
    ],
)
def test_a_schedule_by_epochs_that_cannot_work_is_refused(
    run: RunFolder, task: str, settings: dict[str, Any], reason: str
) -> None:
    write(run, task, **settings)
    with pytest.raises(TrainingError, match=reason):
        run.here()


def by_hand(run: RunFolder) -> dict[str, torch.Tensor]:
    """The parameters after one step along the gradient of the mean over all that is counted in the 100 samples."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.load_state_dict(torch.load(run.path / "first-0.pt", weights_only=True))
    task: Any = Line
    x, y, weight = task().dataset(None, "train").tensors
    (((model(x) - y).square()[:, 0] * weight).sum() / weight.sum()).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return {name: each.detach() for name, each in model.named_parameters()}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_loss_that_counts_is_a_mean_over_all_micro_batches_and_ranks(place: RunFolder, ranks: int) -> None:
    """Each micro-batch counts another number of things, some of them few: not a mean of means."""
    write(place, "Tokens", batch_size=100, accumulate=10 // ranks, lr=0.5)
    if ranks == 1:
        place.here()
    else:
        assert place.ranks(ranks).codes == [0, 0]
    expected, found = by_hand(place), place.parameters()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


def test_a_loss_that_counts_for_some_batches_alone_is_refused(place: RunFolder) -> None:
    write(place, "Mixed", batch_size=100, accumulate=10, config={"few": 15})
    with pytest.raises(TrainingError, match=r"a mean for some batches and a pair \(sum, count\) for others"):
        place.here()
