"""Several optimizers: a step of the task's own, one loss for all, and what both come to under stops and kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.errors import TrainingError

from .conftest import RunFolder, new_run
from .test_training_hooks import alike

TASKS = Path(__file__).with_name("optimized.py")
OWN = {"fixed": False, "spare": False, "counts": False, "poisoned": 0, "name": "generator"}


def write(run: RunFolder, task: str = "Duel", own: dict[str, Any] | None = None, **settings: Any) -> None:
    run.write(f"{TASKS}:{task}", config={**OWN, **(own or {})}, **{"lr": 0.05, "log_every": 1, **settings})


def values(run: RunFolder, name: str) -> list[float]:
    """A value of each step; where a step stands twice, the later line counts."""
    return list({line["step"]: line["values"].get(name) for line in run.metrics("train")}.values())


def largest_difference(one: RunFolder, other: RunFolder) -> float:
    mine, others = one.parameters(), other.parameters()
    assert mine.keys() == others.keys()
    return max(float((mine[name] - others[name]).abs().max()) for name in mine)


@pytest.mark.parametrize(
    "precision",
    ["fp32", pytest.param("bf16", marks=pytest.mark.long), pytest.param("fp16", marks=pytest.mark.long)],
)
@pytest.mark.chosen
def test_two_optimizers_stopped_and_killed_end_bit_for_bit_the_same(tmp_path: Path, precision: str) -> None:
    """With fp16 inside the steps in which the scale still falls, and after them."""
    if precision == "fp16" and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("the CPU's scaler came with torch 2.3")
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 20, "accumulate": 2, "checkpoint_steps": 1}
    settings |= {"precision": precision, "init_scale": 2.0**30, "schedule": "wsd", "warmup_steps": 3}
    undisturbed, disturbed = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "disturbed")
    for each in (undisturbed, disturbed):
        write(each, clip_norm=1.0, **settings)
    undisturbed.here()
    assert disturbed.ranks(1, SMALL_FAULT="SIGUSR1:13:0").codes == [75]
    assert disturbed.ranks(1, SMALL_FAULT="SIGKILL:22:0").codes == [-9]
    disturbed.here()
    assert len(disturbed.metrics("start")) == 3
    each_step = ("loss.critic", "loss.generator", "learning_rate.critic", "gradient_norm.generator")
    alike(disturbed, undisturbed, *each_step)


@pytest.mark.long
def test_two_processes_learn_what_one_accumulating_does_and_parameters_may_be_unused(tmp_path: Path) -> None:
    """Sums of two have one order, so whole steps have the same bits; counted losses come to the same but for rounding."""
    runs = {name: new_run(tmp_path, name) for name in ("one", "two", "counted")}
    own: dict[str, Any] = {"fixed": True, "spare": True}
    settings: dict[str, Any] = {"epochs": 1, "find_unused_parameters": True, "clip_norm": 0.5}
    write(runs["one"], own=own, batch_size=20, accumulate=2, **settings)
    write(runs["two"], own=own, batch_size=20, **settings)
    write(runs["counted"], own={**own, "counts": True}, batch_size=20, **settings)
    runs["one"].here()
    for name in ("two", "counted"):
        ended = runs[name].ranks(2)
        assert ended.codes == [0, 0], ended.err
    assert largest_difference(runs["one"], runs["two"]) == 0
    assert values(runs["one"], "loss.critic") == pytest.approx(values(runs["two"], "loss.critic"), rel=1e-6)
    assert 0 < largest_difference(runs["one"], runs["counted"]) < 1e-5
    assert values(runs["one"], "loss.critic") == pytest.approx(
        values(runs["counted"], "loss.critic"), rel=1e-5
    )


def test_the_last_and_shorter_step_weighs_each_sample_the_same(tmp_path: Path) -> None:
    """100 samples in steps of 48: the last has four, which the second of three micro-batches has none of."""
    whole, parts = new_run(tmp_path, "whole"), new_run(tmp_path, "parts")
    write(whole, own={"fixed": True}, batch_size=48)
    write(parts, own={"fixed": True}, batch_size=48, accumulate=3)
    whole.here()
    parts.here()
    assert largest_difference(whole, parts) < 1e-5
    assert values(whole, "loss.generator") == pytest.approx(values(parts, "loss.generator"), rel=1e-4)


@pytest.mark.long
def test_an_unused_parameter_is_named_where_several_processes_must_know_of_it(run: RunFolder) -> None:
    write(run, own={"spare": True}, batch_size=20)
    ended = run.ranks(2)
    assert set(ended.codes) == {1}
    assert "leaves 1 of the optimizer's parameters without a gradient (critic.spare)" in ended.err + ended.out


def test_losses_and_rates_are_logged_by_name_and_their_sum_is_the_loss(run: RunFolder) -> None:
    write(run, batch_size=20, schedule="linear")
    run.here()
    for line in run.metrics("train"):
        found = line["values"]
        assert found["loss"] == pytest.approx(found["loss.critic"] + found["loss.generator"])
        assert found["learning_rate.critic"] == found["learning_rate.generator"] == found["learning_rate"]


def test_an_update_leaves_the_parameters_of_other_optimizers_alone(tmp_path: Path) -> None:
    """The critic of one step is the same whether the generator's updates, which go through it, come after or not."""
    both, alone = new_run(tmp_path, "both"), new_run(tmp_path, "alone")
    write(both, own={"fixed": True}, batch_size=100)
    write(alone, "Alone", own={"fixed": True}, batch_size=100)
    both.here()
    alone.here()
    mine, others = both.parameters(), alone.parameters()
    different = [name for name in mine if not torch.equal(mine[name], others[name])]
    assert different
    assert all(name.startswith("generator.") for name in different)


def test_only_a_not_finite_update_is_left_out(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, own={"poisoned": 6}, batch_size=20, nonfinite="skip")
    run.here()
    assert "warning: an update of generator in step 2 is left out: its gradient is not finite" in (
        capsys.readouterr().out
    )
    assert values(run, "loss.generator")[1] is None
    assert None not in values(run, "loss.critic")
    write(run, own={"poisoned": 6}, batch_size=20, resume=False)
    with pytest.raises(TrainingError, match="step 2"):
        run.here()


def test_a_name_that_no_optimizer_has_is_said_with_the_nearest_one(run: RunFolder) -> None:
    write(run, own={"name": "genrator"}, batch_size=20)
    with pytest.raises(TrainingError, match="no optimizer of that name; did you mean 'generator'"):
        run.here()


@pytest.mark.parametrize("task", ["Duel", "Forgotten"])
def test_an_optimizer_never_stepped_is_said_once(
    run: RunFolder, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    write(run, task, batch_size=20)
    run.here()
    said = [line for line in capsys.readouterr().out.splitlines() if "update()" in line]
    expected = "warning: step has called update() for none of: generator: in the steps so far, what these optimizers have"
    assert said == ([] if task == "Duel" else [f"{expected} has learned nothing"])


def test_one_loss_for_two_optimizers_is_what_groups_of_one_optimizer_are(tmp_path: Path) -> None:
    halves, groups = new_run(tmp_path, "halves"), new_run(tmp_path, "groups")
    for each, task in ((halves, "Halves"), (groups, "HalvesInGroups")):
        write(each, task, batch_size=20, epochs=2, accumulate=2, clip_norm=0.5)
        each.here()
    assert largest_difference(halves, groups) == 0
    assert values(halves, "loss") == values(groups, "loss")
    assert values(halves, "learning_rate.matrices") == [0.05] * 10
    assert values(halves, "learning_rate.vectors")[-1] == 0


def test_updates_on_batches_of_the_task_s_own_and_on_a_loss_that_is_a_tensor(run: RunFolder) -> None:
    """As in reinforcement learning: several passes over what was collected, by one optimizer."""
    write(run, "Collecting", batch_size=20, accumulate=2, epochs=20)
    run.here()
    losses = values(run, "loss.optimizer")
    assert losses == values(run, "loss")
    assert losses[-1] < losses[0] / 10
