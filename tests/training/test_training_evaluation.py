"""When a training is evaluated, on which sets, and by what beside sums."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.evaluation import Outputs, in_order

from .conftest import RunFolder, new_run, same

TASKS = Path(__file__).with_name("measured.py")
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 20, "lr": 0.05, "log_every": 1}


def write(run: RunFolder, task: str, **settings: Any) -> None:
    run.write(f"{TASKS}:{task}", **{**SETTINGS, **settings})


def evaluations(run: RunFolder) -> list[tuple[int, dict[str, float]]]:
    """Steps and values of all evaluations, in the order they were written."""
    return [
        (line["step"], {name: value for name, value in line["values"].items() if name != "seconds"})
        for line in run.metrics("eval")
    ]


def alike(one: RunFolder, other: RunFolder) -> bool:
    equal = same(one.parameters(), other.parameters())
    return equal and one.losses() == other.losses() and evaluations(one) == evaluations(other)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [5, 10, 15]),
        ({"evaluate_every": 2}, [10, 15]),
        ({"evaluate_every": None}, [15]),
        ({"evaluate_every": 2, "evaluate_steps": 4}, [4, 8, 10, 12, 15]),
        ({"evaluate_every": None, "evaluate_steps": 5}, [5, 10, 15]),
        ({"evaluate_steps": 5}, [5, 10, 15]),
        ({"evaluate_every": None, "evaluate_steps": 4, "max_steps": 8}, [4, 8]),
        ({"evaluate_every": None, "max_steps": 8}, [8]),
    ],
)
def test_evaluations_come_when_they_are_due_each_once_and_change_nothing(
    tmp_path: Path, settings: dict[str, Any], steps: list[int]
) -> None:
    run, other = new_run(tmp_path, "run"), new_run(tmp_path, "other")
    write(run, "Plain", **settings)
    run.here()
    assert [step for step, _ in evaluations(run)] == steps
    if "max_steps" not in settings:
        write(other, "Plain")
        other.here()
        assert run.losses() == other.losses()


@pytest.mark.parametrize("last", [3, 4, 5, 8])
def test_a_resume_repeats_and_misses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Stopped at a step, also one that is evaluated, and gone on with."""
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    for each in (undisturbed, run):
        write(each, "Plain", evaluate_every=2, evaluate_steps=4)
    undisturbed.here()
    write(run, "Plain", evaluate_every=2, evaluate_steps=4, max_steps=last)
    run.here()
    extra = [] if last % 4 == 0 else [last]  # the end of that start is evaluated, too
    write(run, "Plain", evaluate_every=2, evaluate_steps=4)
    run.here()
    found = dict(evaluations(run))
    assert [step for step, _ in evaluations(run)] == sorted([4, 8, 10, 12, 15, *extra])
    assert {step: found[step] for step in found if step not in extra} == dict(evaluations(undisturbed))
    assert run.losses() == undisturbed.losses()


def test_an_evaluation_between_epochs_that_a_stop_breaks_off_is_the_resumed_runs(tmp_path: Path) -> None:
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    for each in (undisturbed, run):
        write(each, "Gathered", evaluate_every=None, evaluate_steps=4, sanity=False)
    undisturbed.here()
    ended = run.ranks(1, MEASURED_FAULT="SIGTERM:5:0")  # three batches an evaluation
    assert ended.codes == [75], ended.err
    assert ([step for step, _ in evaluations(run)], run.stop()["step"]) == ([4], 8)
    run.here()
    assert alike(run, undisturbed)


def test_each_test_set_has_its_measures_by_name(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, "Gathered", epochs=1)
    run.here()
    ((_, values),) = evaluations(run)
    each = ["loss", "median", "mean", "drawn"]
    assert set(values) == {"epoch", "height", *(f"{name}/{one}" for name in ("val", "long") for one in each)}
    for name in ("val", "long"):
        assert values[f"{name}/mean"] == pytest.approx(values[f"{name}/loss"])
        assert values[f"{name}/median"] != values[f"{name}/mean"]
    out = capsys.readouterr().out
    assert f"val/loss {values['val/loss']:.4g}, long/loss" in out
    (manifest,) = (run.path / "checkpoints").glob("step-5/manifest.json")
    assert json.loads(manifest.read_text())["results"]["long/median"] == values["long/median"]


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_outputs_of_several_ranks_come_in_the_order_of_the_set(tmp_path: Path, processes: int) -> None:
    """37 and 5 samples: the ranks have shares of different sizes."""
    alone, run = new_run(tmp_path, "alone"), new_run(tmp_path, "run")
    for each in (alone, run):
        write(each, "Gathered", epochs=1, batch_size=30, max_steps=1)
    alone.here()
    ended = run.ranks(processes)
    assert set(ended.codes) == {0}, ended.err
    ((_, one),), ((_, other),) = evaluations(alone), evaluations(run)
    assert one.keys() == other.keys()


def test_finish_and_sample_change_nothing_in_the_training(tmp_path: Path) -> None:
    plain, run = new_run(tmp_path, "plain"), new_run(tmp_path, "run")
    write(plain, "Plain")
    write(run, "Gathered")
    plain.here()
    run.here()
    assert run.losses() == plain.losses()


@pytest.mark.parametrize(
    ("method", "processes"), [pytest.param("finish", 2, marks=pytest.mark.long), ("sample", 1)]
)
def test_a_mistake_after_the_batches_costs_no_step(tmp_path: Path, method: str, processes: int) -> None:
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    for each in (undisturbed, run):
        write(each, "Gathered", epochs=2)
    ended = run.ranks(processes, MEASURED_FAULT=f"raise:{method}:0")
    assert set(ended.codes) == {1}
    assert f"ValueError: a mistake in {method}" in ended.err
    assert "the evaluation after step 5 failed, and all steps are saved in checkpoints/step-5" in ended.out
    if processes == 1:
        undisturbed.here()
        run.here()
        assert alike(run, undisturbed)


def test_texts_are_kept_by_step(run: RunFolder) -> None:
    write(run, "Alone")
    run.here()
    lines = [json.loads(line) for line in (run.path / "generated.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [("generated", step) for step in (5, 10, 15)]
    assert len({line["values"]["text"] for line in lines}) == 3
    assert [step for step, _ in evaluations(run)] == [5, 10, 15]


def test_a_name_that_two_methods_give_is_refused(tmp_path: Path, run: RunFolder) -> None:
    (tmp_path / "twice.py").write_text(
        "from measured import Plain\n"
        "class Twice(Plain):\n"
        "    def sample(self, model, cfg): return {'val/loss': 1.0}\n"
    )
    sys.path.insert(0, str(TASKS.parent))
    run.write(f"{tmp_path}/twice.py:Twice", **SETTINGS)
    with pytest.raises(Exception, match="gives 'val/loss' both in evaluate and in finish or sample"):
        run.here()
    sys.modules.pop("twice")


def test_outputs_that_do_not_fit_together_are_named() -> None:
    outputs = Outputs()
    outputs.add({"scores": torch.zeros(2, 3)})
    outputs.add({"scores": torch.zeros(2, 4)})
    with pytest.raises(
        Exception, match=r"outputs 'scores' .* shape \(2, 3\), a tensor of shape \(2, 4\); give"
    ):
        outputs.whole()
    for other in (torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int64), [1, 2], None):
        with pytest.raises(Exception, match="outputs 'scores' of evaluate do not fit together"):
            in_order("scores", [torch.zeros(2, 3), other], 4)


def test_what_is_kept_of_a_sample_is_not_the_batch_that_it_is_a_part_of() -> None:
    outputs, batch = Outputs(), torch.zeros(64, 1000, requires_grad=True)
    outputs.add({"boxes": [{"boxes": each[:2], "name": "a"} for each in batch]})
    kept = outputs.whole()["boxes"]
    assert len(pickle.dumps(kept)) < 64 * 1000
    assert not any(each["boxes"].requires_grad for each in kept)


def test_more_ranks_than_samples_leave_no_holes() -> None:
    assert in_order("a", [torch.tensor([3]), torch.tensor([4]), None, None], 2).tolist() == [3, 4]  # type: ignore[union-attr]
    assert in_order("a", [["x", "z"], ["y"]], 3) == ["x", "y", "z"]
