"""The learning rate's course, groups of parameters and the norm of gradients: settings and the task's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import RunFolder, new_run, same

TASKS = Path(__file__).with_name("optimized.py")
CPU = torch.device("cpu")

needs_fp16 = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="the CPU's scaler came with 2.3")


def rates(run: RunFolder) -> list[float]:
    return [line["values"]["learning_rate"] for line in run.metrics("train")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_steps": "40%"}, [0.5, 0.75, 1, 1, 1, 1, 1, 1, 1, 1]),
        ({"schedule": "wsd", "warmup_steps": 2, "decay_steps": 4}, [1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]),
        ({"schedule": "wsd"}, [1, 1, 1, 1, 1, 1, 1, 1, 0.5, 0]),
        (
            {"schedule": "wsd", "decay_steps": 99, "warmup_steps": 8},
            [*(n / 8 for n in range(2, 9)), 1, 0.5, 0],
        ),
        ({"schedule": "linear", "min_lr": "20%"}, [0.92, 0.84, 0.76, 0.68, 0.6, 0.52, 0.44, 0.36, 0.28, 0.2]),
        (
            {"schedule": "cosine", "min_lr": 0.05},
            [0.5 + 0.25 * (1 + math.cos(math.pi * step / 10)) for step in range(1, 11)],
        ),
        ({"schedule": "cosine", "min_lr": 7}, [1] * 10),
        ({"min_lr": "20%"}, [1] * 10),
    ],
    ids=str,
)
def test_the_learning_rate_follows_its_schedule(
    run: RunFolder, settings: dict[str, Any], expected: list[float]
) -> None:
    """Each line has the rate of the step after it."""
    run.write("Line", epochs=2, batch_size=20, lr=0.1, log_every=1, **settings)
    run.here()
    assert rates(run) == pytest.approx([0.1 * rate for rate in expected])


@pytest.mark.long
@pytest.mark.chosen
def test_a_course_goes_on_after_a_stop_and_a_kill_as_if_there_had_been_none(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 20, "lr": 0.05, "log_every": 3, "accumulate": 2}
    settings |= {
        "schedule": "wsd",
        "warmup_steps": "20%",
        "min_lr": "10%",
        "no_decay": True,
        "clip_norm": 0.5,
    }
    undisturbed, disturbed = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "disturbed")
    for each in (undisturbed, disturbed):
        each.write("Line", checkpoint_steps=1, **settings)
    undisturbed.here()
    assert disturbed.ranks(1, SMALL_FAULT="SIGUSR1:3:0").codes == [75]
    assert disturbed.ranks(1, SMALL_FAULT="SIGKILL:20:0").codes == [-9]
    disturbed.here()
    for name in ("loss", "learning_rate", "gradient_norm"):
        last = {line["step"]: line["values"][name] for line in disturbed.metrics("train")}
        assert list(last.values()) == [line["values"][name] for line in undisturbed.metrics("train")], name
    assert same(disturbed.parameters(), undisturbed.parameters())


@needs_fp16
def test_a_fused_optimizer_s_schedule_rests_too_where_the_scaler_leaves_a_step_out(run: RunFolder) -> None:
    try:
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
    except RuntimeError:
        pytest.skip("fused optimizers on the CPU came with torch 2.4")
    settings: dict[str, Any] = {"batch_size": 20, "precision": "fp16", "warmup_steps": 10, "lr": 0.1}
    run.write(f"{TASKS}:Fused", init_scale=2.0**40, log_every=1, **settings)
    run.here()
    assert rates(run) == pytest.approx([0.01] * 5)


def test_groups_of_the_task_s_get_their_own_rate_and_what_is_in_none_is_named(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write(f"{TASKS}:Grouped", batch_size=20, lr=0.01, weight_decay=0.5, schedule="linear")
    run.here()
    state = torch.load(run.path / "checkpoints/step-5/training.pt", weights_only=True)["optimizer"]
    groups = [
        (group["initial_lr"], group["weight_decay"], group["params"]) for group in state["param_groups"]
    ]
    assert groups == [(0.01, 0.5, [0]), (pytest.approx(0.1), 0.0, [1, 2])]
    note = "note: 1 parameter(s) stay as they are, because the optimizer does not have them: 0.bias"
    assert note in capsys.readouterr().out


def test_an_option_the_optimizer_lacks_is_said(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write(f"{TASKS}:Mistyped", batch_size=50)
    run.here()
    said = capsys.readouterr().out
    assert "warning: parameter_groups sets 'learning_rate', which AdamW does not have" in said


@pytest.mark.parametrize("no_decay", [False, True])
def test_biases_and_norms_go_without_decay_when_asked(run: RunFolder, no_decay: bool) -> None:
    run.write("Buffered", batch_size=20, weight_decay=0.3, no_decay=no_decay)
    run.here()
    state = torch.load(run.path / "checkpoints/step-5/training.pt", weights_only=True)["optimizer"]
    groups = [(group["weight_decay"], len(group["params"])) for group in state["param_groups"]]
    assert groups == ([(0.3, 2), (0.0, 4)] if no_decay else [(0.3, 6)])


def test_the_norm_of_the_gradient_is_that_of_the_step_and_changes_nothing(tmp_path: Path) -> None:
    """One step with plain SGD: what the parameters have moved, over the learning rate."""
    logged, plain = new_run(tmp_path, "logged"), new_run(tmp_path, "plain")
    settings: dict[str, Any] = {"batch_size": 100, "lr": 0.5, "log_every": 1}
    logged.write("Restless", log_grad_norm=True, **settings)
    plain.write("Restless", **settings)
    logged.here()
    plain.here()
    mine, others = logged.parameters(), plain.parameters()
    assert all(torch.equal(mine[name], others[name]) for name in others)
    assert "gradient_norm" not in plain.metrics("train")[0]["values"]
    before = new_run(tmp_path, "before")
    before.write("Restless", **{**settings, "lr": 1e-30})
    before.here()
    moved = torch.cat([(mine[name] - each).flatten() / 0.5 for name, each in before.parameters().items()])
    (line,) = logged.metrics("train")
    assert line["values"]["gradient_norm"] == pytest.approx(moved.norm().item(), rel=1e-5)
