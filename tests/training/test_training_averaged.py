"""The moving average of the weights (ema), and buffers that each rank keeps for itself."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.errors import TrainingError
from slurmgpu.training.export import export
from slurmgpu.training.formats.checkpoint import AVERAGE

from .conftest import RunFolder, new_run
from .test_training_schedules import needs_fp16

OPTIMIZED = Path(__file__).with_name("optimized.py")
EVERY: dict[str, Any] = {"batch_size": 20, "checkpoint_steps": 1, "keep": 99, "log_every": 1, "lr": 0.05}


def part(run: RunFolder, step: int, name: str = AVERAGE) -> Any:
    return torch.load(run.path / "checkpoints" / f"step-{step}" / name, weights_only=True)


def follows(run: RunFolder, step: int, decay: float = 0.9) -> bool:
    """Whether the average of a step is that of the step before it and the weights after the step."""
    before, weights, now = part(run, step - 1), part(run, step, "model.pt"), part(run, step)
    return all(torch.equal(torch.lerp(before[name], weights[name], 1 - decay), now[name]) for name in now)


def rests(run: RunFolder, step: int) -> bool:
    before, now = part(run, step - 1), part(run, step)
    return all(torch.equal(before[name], now[name]) for name in now)


def evaluations(run: RunFolder) -> dict[int, float]:
    return {line["step"]: line["values"]["loss"] for line in run.metrics("eval")}


@pytest.mark.parametrize("task", ["Buffered", f"{OPTIMIZED}:Halves", f"{OPTIMIZED}:Collecting"])
def test_each_step_moves_the_average_once(run: RunFolder, task: str) -> None:
    """With accumulation, with two optimizers, and with several updates in a step of the task's own."""
    run.write(task, ema=0.9, accumulate=2, max_steps=4, **EVERY)
    run.here()
    assert all(follows(run, step) for step in (2, 3, 4))
    assert not any(rests(run, step) for step in (2, 3, 4))
    parameters = {name for name in part(run, 4, "model.pt") if "running" not in name and "num_" not in name}
    assert part(run, 4).keys() == parameters


def test_the_average_is_evaluated_and_exported_and_training_does_not_know_of_it(tmp_path: Path) -> None:
    runs = {name: new_run(tmp_path, name) for name in ("with", "without")}
    runs["with"].write("Buffered", ema=0.9, freeze=["0.bias"], **EVERY)
    runs["without"].write("Buffered", freeze=["0.bias"], **EVERY)
    for each in runs.values():
        each.here()
    assert runs["with"].losses() == runs["without"].losses()
    files = {"average": ("with", "model"), "raw": ("with", "raw"), "plain": ("without", "model")}
    for name, (run, what) in files.items():
        facts = export(runs[run].path / "checkpoints/step-5", tmp_path / name, what)
        assert facts["averaged"] == (name == "average")
    average, raw, plain = (torch.load(tmp_path / name, weights_only=True) for name in files)
    assert list(average) == list(raw) == list(plain)
    assert all(torch.equal(raw[name], plain[name]) for name in raw)
    same = [name for name in raw if torch.equal(raw[name], average[name])]
    assert same == ["0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert evaluations(runs["with"])[5] == pytest.approx(loss_of(average), rel=1e-5)
    assert evaluations(runs["without"])[5] == pytest.approx(loss_of(raw), rel=1e-5)
    assert loss_of(average) != pytest.approx(loss_of(raw), rel=1e-2)


def loss_of(state: dict[str, torch.Tensor]) -> float:
    """The test loss of small.py's Buffered with these weights."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).eval()
    model.load_state_dict(state)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(37, 3, generator=generator)
    y = 2 * x[:, :1] - 1 + torch.randn(37, 1, generator=generator) / 10
    return torch.nn.functional.mse_loss(model(x), y).item()


def test_a_training_with_an_average_resumes_to_the_bit(tmp_path: Path) -> None:
    runs = {name: new_run(tmp_path, name) for name in ("undisturbed", "disturbed")}
    for each in runs.values():
        each.write("Restless", ema=0.9, epochs=2, evaluate_steps=3, **EVERY)
    runs["undisturbed"].here()
    for steps in ("2", "6", "10"):
        runs["disturbed"].here(SLURMGPU_MAX_STEPS=steps)
    ends = [(each.losses(), repr(part(each, 10)), repr(each.parameters())) for each in runs.values()]
    assert ends[0] == ends[1]
    mine, others = (evaluations(each) for each in runs.values())
    assert {step: others[step] for step in mine} == mine


def test_a_step_that_is_left_out_does_not_move_the_average(run: RunFolder, tmp_path: Path) -> None:
    poisoned = {"nonfinite": "skip", "max_steps": 4, "config": {"poisoned": 3}, "log_grad_norm": True}
    run.write("Poisoned", ema=0.9, **poisoned, **EVERY)
    run.here()
    assert rests(run, 3)
    assert follows(run, 4)
    norms = [line["values"].get("gradient_norm") for line in run.metrics("train")]
    fourth = new_run(tmp_path, "fourth")
    fourth.write("Poisoned", **poisoned, **EVERY | {"log_every": 4})
    fourth.here()
    (mean,) = fourth.metrics("train")
    finite = [norm for norm in norms if norm is not None and math.isfinite(norm)]
    assert len(finite) == 3, "nor is the norm of that step in the mean that is logged"
    assert mean["values"]["gradient_norm"] == pytest.approx(sum(finite) / 3)


@needs_fp16
@pytest.mark.parametrize("task", ["Poisoned", f"{OPTIMIZED}:FusedPoisoned"])
def test_a_step_that_the_scaler_leaves_out_does_not_move_the_average(run: RunFolder, task: str) -> None:
    try:
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
    except RuntimeError:
        pytest.skip("fused optimizers on the CPU came with torch 2.4")
    own = {"poisoned": 3}
    run.write(
        task, ema=0.9, nonfinite="ignore", precision="fp16", max_steps=4, config=own, init_scale=8.0, **EVERY
    )
    run.here()
    assert rests(run, 3)
    assert follows(run, 4)


def test_a_resume_that_begins_or_ends_an_average_is_noticed(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write(max_steps=2, **EVERY)
    run.here()
    run.write(max_steps=4, ema=0.9, **EVERY)
    run.here()
    assert "changed since step-2: ema None -> 0.9. Training goes on" in capsys.readouterr().out
    first = part(run, 3)
    weights = [part(run, step, "model.pt") for step in (2, 3)]
    assert all(
        torch.equal(first[name], torch.lerp(*(each[name] for each in weights), 1 - 0.9)) for name in first
    )
    run.write(max_steps=5, **EVERY)
    run.here()
    assert "changed since step-4: ema 0.9 -> None. Training goes on" in capsys.readouterr().out
    assert not (run.path / "checkpoints/step-5" / AVERAGE).exists()


def test_an_average_of_other_parameters_is_refused(run: RunFolder) -> None:
    run.write(max_steps=2, ema=0.9, freeze=["0.bias"], **EVERY)
    run.here()
    run.write(max_steps=4, ema=0.9, **EVERY)
    with pytest.raises(TrainingError, match=r"does not fit|average.pt and the parameters"):
        run.here()


@pytest.mark.long
@pytest.mark.chosen
def test_two_processes_with_an_average_and_buffers_of_their_own_resume_to_the_bit(run: RunFolder) -> None:
    """The last steps are taken twice: by an undisturbed training, and by one that begins at the checkpoint before them."""
    run.write("Buffered", ema=0.9, broadcast_buffers=False, evaluate_steps=2, max_steps=5, **EVERY)
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    assert "Warning" not in ended.err
    names = (AVERAGE, "model.pt", "training.pt", "rank-0.pt", "rank-1.pt")
    undisturbed = {name: repr(part(run, 5, name)) for name in names}
    own, of_first = part(run, 5, "rank-1.pt")["buffers"], part(run, 5, "model.pt")
    assert not torch.equal(own[0], of_first["1.running_mean"])
    for step in (3, 4, 5):
        shutil.rmtree(run.path / "checkpoints" / f"step-{step}")
    assert run.ranks(2).codes == [0, 0]
    assert run.metrics("start")[-1]["step"] == 2
    assert {name: repr(part(run, 5, name)) for name in names} == undisturbed
