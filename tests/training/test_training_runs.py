"""Whole trainings in one process: the numbers, resume, what is said and written."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from slurmgpu.training import evaluation, files, precision
from slurmgpu.training.errors import NotFinite, SettingsError, TrainingError
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving.snapshot import Snapshot
from slurmgpu.training.watching import signals, watch

from .conftest import RunFolder, new_run, same


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], atol=1e-6) for name in one
    )


def test_a_run_says_and_writes_what_it_did(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """100 samples in steps of 32: epochs end inside steps 4, 7 and 10, the last of which has 12 samples."""
    run.write(epochs=3, batch_size=32, log_every=2, lr=0.05)
    run.here(SLURM_RESTART_COUNT="2")
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith(
        "processes: 1, nodes: 1, CPU, fp32, 3 epochs of 100 samples, 10 steps, batch 32 = 1 x 1 x 32"
    )
    assert out[-1].startswith("done: 3 epochs, 10 steps, ")
    assert "test loss 0." in out[-1]
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert {line["schema"] for line in lines} == {"slurmgpu.metrics/1"}
    assert {(line["restart"], line["rank"]) for line in lines} == {(2, 0)}
    steps = {
        kind: [line["step"] for line in lines if line["kind"] == kind]
        for kind in ("train", "eval", "checkpoint")
    }
    assert steps == {"train": [2, 4, 6, 8, 10], "eval": [4, 7, 10], "checkpoint": [4, 7, 10]}
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("start", "end")
    (start,) = run.metrics("start")
    assert start["values"]["settings"]["batch_size"] == 32
    assert [(rank["rank"], rank["device"]) for rank in start["values"]["ranks"]] == [(0, "cpu")]
    train = run.metrics("train")[-1]["values"]
    assert {
        "epoch",
        "loss",
        "samples_per_second",
        "step_seconds",
        "data_wait_seconds",
        "checkpoint_seconds",
        "learning_rate",
    } <= train.keys()
    assert run.metrics("end")[-1]["values"]["reason"] == "epochs"
    assert run.checkpoints() == ["step-10", "step-7"]


@pytest.mark.parametrize(("warmup_steps", "noted"), [(10, False), (40, True)])
def test_a_warm_up_that_never_ends_is_noted(
    run: RunFolder, capsys: pytest.CaptureFixture[str], warmup_steps: int, noted: bool
) -> None:
    run.write(epochs=2, batch_size=10, warmup_steps=warmup_steps, lr=0.01, log_every=1)
    run.here()
    text = "note: warmup_steps 40 is more than the 20 steps of this training: the learning rate rises to 0.5 of lr"
    assert (text in capsys.readouterr().out) == noted
    # Each line has the rate of the step after it.
    rates = [line["values"]["learning_rate"] for line in run.metrics("train")]
    assert max(rates[:-1]) == pytest.approx(0.005 if noted else 0.01)


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_sparse_gradients_are_measured_and_clipped_as_dense(tmp_path: Path, clip_norm: float | None) -> None:
    seen = []
    for sparse in (False, True):
        run = new_run(tmp_path, f"sparse-{sparse}")
        settings = {"batch_size": 20, "lr": 0.1, "log_every": 1, "accumulate": 2, "log_grad_norm": True}
        run.write("Rows", **settings, clip_norm=clip_norm, nonfinite="skip", config={"sparse": sparse})
        run.here()
        seen.append(
            [[line["values"][name] for name in ("loss", "gradient_norm")] for line in run.metrics("train")]
        )
    assert torch.allclose(torch.tensor(seen[0]), torch.tensor(seen[1]), rtol=1e-5)


def test_clipping_is_in_force(run: RunFolder, tmp_path: Path) -> None:
    run.write("Restless", batch_size=50, lr=1.0, clip_norm=1e-9)
    run.here()
    untouched = new_run(tmp_path, "untouched")
    untouched.write("Restless", batch_size=50, lr=1e-9)
    untouched.here()
    assert close(run.parameters(), untouched.parameters())


def test_a_killed_run_ends_bit_for_bit_as_an_undisturbed_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 5, "batch_size": 20, "lr": 0.05, "log_every": 1}
    undisturbed, killed = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "killed")
    undisturbed.write("Restless", **settings)
    undisturbed.here()
    killed.write("Restless", **settings)
    assert killed.ranks(1, SMALL_FAULT="SIGKILL:18:0").codes == [-9]  # inside epoch 4
    killed.here()
    resumed = killed.metrics("start")[-1]
    assert resumed["values"]["resumed_from"] in ("step-5", "step-10", "step-15", None)
    steps = 25 - resumed["step"]
    assert killed.losses()[-steps:] == undisturbed.losses()[-steps:]
    assert same(killed.parameters(), undisturbed.parameters())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_resumes_in_an_epoch_and_at_its_end_change_no_bit(
    tmp_path: Path, workers: int, accumulate: int
) -> None:
    """Stopped after 2, 3 and 7 steps of five an epoch, twice inside an interval of metrics."""
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 24, "lr": 0.05, "log_every": 2}
    undisturbed, stopped = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "stopped")
    for each in (undisturbed, stopped):
        each.write("Restless", workers=workers, accumulate=accumulate, **settings)
    undisturbed.here()
    for steps in ("2", "3", "7"):
        stopped.here(SLURMGPU_MAX_STEPS=steps)
    stopped.here()
    assert [line["step"] for line in stopped.metrics("start")] == [0, 2, 3, 7]
    assert {line["values"]["reason"] for line in stopped.metrics("end")[:3]} == {"SLURMGPU_MAX_STEPS"}
    assert same(stopped.parameters(), undisturbed.parameters())


def test_max_steps_alone_takes_epochs_as_it_needs(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """5 steps an epoch: 12 are two epochs and two steps, which the schedule knows, and a resume, and what is said."""
    run.write(batch_size=20, max_steps=12, schedule="linear", log_every=1, checkpoint_steps=1)
    run.here(SLURMGPU_MAX_STEPS="7")
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 8))
    run.here()
    rates = [line["values"]["learning_rate"] for line in run.metrics("train")]
    assert rates[:12] == pytest.approx([1e-3 * (12 - step) / 12 for step in range(1, 13)])
    assert [line["values"]["total_steps"] for line in run.metrics("start")] == [12, 12]
    assert [line["step"] for line in run.metrics("eval")] == [5, 7, 10, 12]
    assert run.metrics("end")[-1]["values"]["reason"] == "max_steps"
    out = capsys.readouterr().out
    assert "100 samples an epoch, 12 steps" in out
    assert "epoch 2/3  step 10/12" in out
    assert out.splitlines()[-1].startswith("done: 2 epochs, 12 steps")
    assert "stopped by max_steps" not in out
    run.here()
    assert len(run.metrics("start")) == 2
    run.write(batch_size=20, max_steps=14, schedule="linear", log_every=1)
    run.here()
    assert run.metrics("train")[-1]["step"] == 14


def test_without_epochs_and_max_steps_a_training_has_one_epoch(run: RunFolder) -> None:
    run.write(batch_size=20)
    run.here()
    run.here()
    assert [line["step"] for line in run.metrics("end")] == [5]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": 33}, "the training's last step has 1 sample(s)"),
        ({"batch_size": 49, "micro_batch": 7, "max_steps": 1}, None),
        ({"batch_size": 40, "accumulate": 40, "max_steps": 1}, "each step has 40 sample(s)"),
        ({"batch_size": 33, "drop_last": True}, None),
        ({"batch_size": 33, "max_steps": 3}, None),
    ],
)
def test_batchnorm_with_one_sample_at_a_time_is_said_before_the_first_step(
    run: RunFolder, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], said: str | None
) -> None:
    run.write("Buffered", log_every=1, **settings)
    if said is None:
        run.here()
        assert "BatchNorm" not in capsys.readouterr().out
    else:
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            run.here()
        assert (
            f"warning: {said}, and a process gets one alone: BatchNorm (1) refuses" in capsys.readouterr().out
        )


def test_a_finished_run_trains_on_to_a_raised_end(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write(epochs=1, batch_size=50)
    run.here()
    run.here()
    assert (
        "to train on, raise epochs or max_steps in the run directory's train.json" in capsys.readouterr().out
    )
    settings = json.loads((run.path / "train.json").read_text())
    (run.path / "train.json").write_text(json.dumps(settings | {"epochs": 2}))
    run.here()
    assert "done: 2 epochs, 4 steps" in capsys.readouterr().out


def test_changed_settings_that_matter_are_named(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write(epochs=1, batch_size=50, config={"hidden": 1, "same": 2})
    run.here()
    run.write(epochs=2, batch_size=25, lr=0.5, workers=0, keep=3, config={"hidden": 4, "same": 2})
    capsys.readouterr()
    run.here()
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: changed")]
    assert (
        "changed since step-2: batch_size 50 -> 25, lr 0.001 -> 0.5, config.hidden 1 -> 4. Training" in note
    )


@pytest.mark.parametrize("task", ["OneCycle", "Rising"])
def test_a_longer_training_gets_a_schedule_of_its_length(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    """OneCycleLR fails when asked for more steps than it was made for; LinearLR multiplies the rate it finds."""
    run.write(task, epochs=2, batch_size=50, log_every=1)
    run.here()
    run.write(task, epochs=4, batch_size=50, log_every=1)
    run.here()
    assert "note: the schedule is made anew for 8 steps, of which 4 are through" in capsys.readouterr().out
    straight = new_run(tmp_path, "straight")
    straight.write(task, epochs=4, batch_size=50, log_every=1)
    straight.here()

    def rates(each: RunFolder) -> list[float]:
        return [line["values"]["learning_rate"] for line in each.metrics("train")[-4:]]

    assert rates(run) == pytest.approx(rates(straight))


def test_a_checkpoint_of_another_model_is_refused_by_name(run: RunFolder) -> None:
    run.write("Line", epochs=1, batch_size=50)
    run.here()
    run.write("Buffered", epochs=2, batch_size=50)
    with pytest.raises(
        TrainingError,
        match=r"(?s)step-2 does not fit .*small\.py: .*submit the job again: a new run starts at the first step",
    ):
        run.here()


def test_without_resume_checkpoints_move_aside(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write(epochs=2, batch_size=50)
    run.here()
    run.write(epochs=1, batch_size=50, resume=False)
    run.here()
    assert "the earlier checkpoints are now in earlier-checkpoints-1" in capsys.readouterr().out
    assert run.checkpoints() == ["step-2"]
    assert (run.path / "earlier-checkpoints-1" / "step-4" / "manifest.json").exists()


def test_checkpoints_come_as_often_as_asked_and_always_at_the_end(run: RunFolder) -> None:
    run.write(epochs=5, batch_size=50, checkpoint_every=2, keep=9)
    run.here()
    assert run.checkpoints() == ["step-10", "step-4", "step-8"]


def test_bf16_trains_on_the_cpu(run: RunFolder) -> None:
    run.write(epochs=20, batch_size=20, lr=0.05, precision="bf16")
    run.here()
    losses = [line["values"]["loss"] for line in run.metrics("eval")]
    assert losses[-1] < losses[0] / 2


needs_fp16 = pytest.mark.skipif(
    not precision._cpu_computes_fp16(), reason="this torch has no fp16 for the CPU (2.3 and newer have)"
)


@needs_fp16
def test_fp16_learns_on_the_cpu_by_the_path_of_a_gpu_and_says_what_that_shows(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first scale overflows: such steps change nothing, and the scale falls."""
    run.write(epochs=20, batch_size=20, lr=0.05, precision="fp16", init_scale=2.0**40)
    run.here()
    losses = [line["values"]["loss"] for line in run.metrics("eval")]
    assert losses[-1] < losses[0] / 2
    state = torch.load(run.path / "checkpoints/step-100/training.pt", weights_only=True)["scaler"]
    assert 1 < state["scale"] < 2.0**40
    out = capsys.readouterr().out
    assert out.count("note: fp16 on the CPU is a trial of what a GPU does") == 1


@needs_fp16
def test_the_learning_rate_does_not_go_on_in_steps_that_the_scaler_leaves_out(run: RunFolder) -> None:
    run.write(batch_size=20, precision="fp16", init_scale=2.0**40, warmup_steps=10, lr=0.1, log_every=1)
    run.here()
    assert [line["values"]["learning_rate"] for line in run.metrics("train")] == pytest.approx([0.01] * 5)


@needs_fp16
def test_fp16_killed_and_stopped_on_the_cpu_ends_bit_for_bit_as_undisturbed(tmp_path: Path) -> None:
    """Inside the steps in which the scale still falls, and after them."""
    settings: dict[str, Any] = {"epochs": 5, "batch_size": 20, "accumulate": 2, "log_every": 1}
    settings |= {
        "precision": "fp16",
        "init_scale": 2.0**30,
        "checkpoint_steps": 2,
        "lr": 0.05,
        "clip_norm": 1.0,
    }
    undisturbed, disturbed = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "disturbed")
    for each in (undisturbed, disturbed):
        each.write("Restless", **settings)
    undisturbed.here()
    disturbed.here(SLURMGPU_MAX_STEPS="3")
    assert disturbed.ranks(1, SMALL_FAULT="SIGKILL:21:0").codes == [-9]
    disturbed.here()
    assert [line["step"] for line in disturbed.metrics("start")][:2] == [0, 3]
    assert same(disturbed.parameters(), undisturbed.parameters())
    last = {line["step"]: line["values"]["loss"] for line in disturbed.metrics("train")}
    assert list(last.values()) == undisturbed.losses()
    one, other = (
        torch.load(each.path / "checkpoints/step-25/training.pt", weights_only=True)["scaler"]
        for each in (disturbed, undisturbed)
    )
    assert one == other
    assert one["scale"] < 2.0**30


def test_fp16_on_the_cpu_says_which_torch_it_needs(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_cpu_computes_fp16", lambda: False)
    run.write(precision="fp16", batch_size=20)
    with pytest.raises(SettingsError, match=r"fp16 on the CPU needs torch 2\.3 or newer, and here is \d"):
        run.here()


def test_a_line_of_metrics_cut_off_by_a_kill_spoils_no_other(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_text('{"schema": "slurmgpu.me')
    run.write(batch_size=50)
    run.here()
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["kind"] == "start"


def test_a_loss_that_is_no_number_ends_the_training_and_is_never_saved(run: RunFolder) -> None:
    run.write("Restless", epochs=2, batch_size=20, lr=1e30, checkpoint_steps=1, keep=99)
    with pytest.raises(NotFinite, match=r"the loss or a parameter is not finite at step [23]"):
        run.here()
    assert run.stop()["reason"] == "nonfinite"
    assert run.stop()["requeue"] is False
    for name in run.checkpoints():
        state = torch.load(run.path / "checkpoints" / name / "rank-0.pt", weights_only=True)
        assert all(map(math.isfinite, state["meter"]["losses"]))


@pytest.mark.parametrize("steep", [3, 5], ids=["on the way", "in the very last step"])
def test_a_gradient_of_nan_below_a_finite_loss_is_never_saved(run: RunFolder, steep: int) -> None:
    run.write("Steep", batch_size=20, checkpoint_steps=1, keep=99, config={"steep": steep})
    with pytest.raises(NotFinite, match=f"a parameter is not finite at step {steep}"):
        run.here()
    assert run.checkpoints() == [f"step-{step}" for step in range(1, steep)]
    assert all(torch.isfinite(value).all() for value in run.parameters().values())


def test_a_loss_that_is_no_number_can_be_ignored(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write("Restless", epochs=2, batch_size=20, lr=1e30, nonfinite="ignore")
    run.here()
    assert "warning: the loss is nan at step 10" in capsys.readouterr().out


def test_a_step_whose_loss_is_no_number_can_be_left_out(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters and optimizer stay as they are; the mean loss is that of the other steps."""
    run.write("Poisoned", batch_size=20, nonfinite="skip", log_every=5, config={"poisoned": 3})
    run.here()
    assert "warning: step 3 is left out" in capsys.readouterr().out
    (loss,) = run.losses()
    assert loss == loss
    assert all(torch.isfinite(value).all() for value in run.parameters().values())


def test_a_step_that_is_left_out_leaves_nothing_in_the_averages_of_batchnorm(run: RunFolder) -> None:
    """They would stay NaN for good, and with them every evaluation."""
    run.write("Infinite", batch_size=20, nonfinite="skip", sanity=False)
    run.here()
    assert all(torch.isfinite(value).all() for value in run.parameters().values())
    assert run.parameters()["1.num_batches_tracked"] == 4
    assert run.metrics("eval")[-1]["values"]["loss"] is not None


def test_metrics_that_cannot_be_written_are_named(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").mkdir()
    run.write(batch_size=20)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl cannot be written: Is a directory"):
        run.here()


ODD = {
    "none": "sample 37 is None, most others are {'x': a tensor of shape (3,)} ",
    "longer": "sample 37 is a tuple of 2: (a tensor of shape (4,), a int), most others are a tuple of 2: ",
    "list": "sample 37 is a list of 3, most others are a list of 2 ",
    "all": " is None (torch's default_collate says: TypeError: ",
}


@pytest.mark.parametrize("odd", ODD)
def test_a_sample_that_does_not_fit_into_a_batch_is_named(run: RunFolder, odd: str) -> None:
    run.write("Ragged", batch_size=100, workers=0, config={"odd": odd})
    with pytest.raises(TrainingError, match=re.escape(ODD[odd])):
        run.here()


def test_a_sample_that_does_not_fit_is_named_by_a_loaders_worker_too(run: RunFolder) -> None:
    run.write("Ragged", batch_size=100, workers=1, config={"odd": "longer"})
    ended = run.ranks(1)
    assert ended.codes == [1]
    assert ODD["longer"] in ended.err


@pytest.mark.parametrize("value", ["0", "many", "-1"])
def test_a_wrong_step_limit_is_named(run: RunFolder, value: str) -> None:
    run.write(batch_size=50)
    with pytest.raises(SettingsError, match=f"SLURMGPU_MAX_STEPS is '{value}'"):
        run.here(SLURMGPU_MAX_STEPS=value)


def test_a_loss_that_is_no_number_is_found_where_it_is_logged(run: RunFolder) -> None:
    run.write("Restless", epochs=2, batch_size=20, lr=1e30, checkpoint_every=9)
    with pytest.raises(NotFinite, match=r"the loss is not finite at step 10"):
        run.here()
    assert run.losses() == [None]


def test_activation_checkpointing_without_blocks_says_what_is_missing(run: RunFolder) -> None:
    run.write("Line", batch_size=20, activation_checkpointing=True)
    with pytest.raises(TrainingError, match=r"needs a method blocks\(model\) in Line"):
        run.here()


def test_frozen_parameters_stay_as_they_are(run: RunFolder, tmp_path: Path) -> None:
    run.write("Line", batch_size=20, lr=0.05, epochs=2, freeze=["0.*"])
    run.here()
    first = new_run(tmp_path, "first")
    first.write("Line", batch_size=20, lr=1e-12)
    first.here()
    trained, start = run.parameters(), first.parameters()
    assert torch.equal(trained["0.weight"], start["0.weight"])
    assert not torch.allclose(trained["2.weight"], start["2.weight"])


def test_a_pattern_that_freezes_nothing_or_all_is_refused(run: RunFolder) -> None:
    run.write("Line", batch_size=20, freeze=["encoder.*"])
    with pytest.raises(SettingsError, match=r"no parameter is named like 'encoder\.\*'; there are 0\.weight"):
        run.here()
    run.write("Line", batch_size=20, freeze=["*"])
    with pytest.raises(SettingsError, match="leaves nothing to train"):
        run.here()


@pytest.mark.parametrize(("drop", "steps"), [(False, 10), (True, 9)])
def test_what_is_left_at_the_end_is_a_shorter_step_or_left_out(
    run: RunFolder, capsys: pytest.CaptureFixture[str], drop: bool, steps: int
) -> None:
    run.write("Line", epochs=3, batch_size=32, drop_last=drop)
    run.here()
    assert max(int(name.removeprefix("step-")) for name in run.checkpoints()) == steps
    assert [line["values"]["reason"] for line in run.metrics("end")] == ["epochs"]
    run.here()
    assert "already done" in capsys.readouterr().out


def test_a_training_without_a_single_whole_step_is_refused(run: RunFolder) -> None:
    run.write("Line", epochs=2, batch_size=500, drop_last=True)
    with pytest.raises(SettingsError, match="batch_size is 500, and the 2 epochs have 200 samples in all"):
        run.here()
    assert run.checkpoints() == []


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three writes fail, after the lock and the count of starts."""
    real, writes = files._sync, iter(range(100))

    def full(file: Any) -> None:
        if 2 <= next(writes) < 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(files, "_sync", full)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_costs_checkpoints_and_not_the_training(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write("Line", epochs=2, batch_size=20, checkpoint_steps=1, sanity=False)
    run.here()
    out = capsys.readouterr().out
    assert (
        "warning: checkpoint of step 2 failed (rank 0 on : No space left on device); the newest one is none"
        in out
    )
    assert out.count("until one succeeds, a kill costs all steps since the newest") == 3
    assert run.checkpoints() == ["step-10", "step-9"]
    assert out.splitlines()[-1].startswith("done: 2 epochs")


@pytest.mark.usefixtures("full_disk")
def test_the_last_save_is_tried_four_times(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurmgpu.training.trainer._PATIENCE", (0.0, 0.0, 0.0))
    run.write("Line", batch_size=20, sanity=False)
    run.here()
    assert capsys.readouterr().out.count("warning: checkpoint of step 5 failed") == 3
    assert run.checkpoints() == ["step-5"]


def test_the_time_in_which_a_job_is_suspended_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    watched = watch.Watch(Ranks(), 5, hang_timeout=10.0)

    def hang(seconds: float) -> NoReturn:
        raise SystemExit(f"{seconds:.1f}")

    for moment in (1000.0, 1000.2, 9000.0, 9009.0):  # stopped for more than two hours
        now[0] = moment
        watched._look_for_hang(hang)
    now[0] = 9010.0
    with pytest.raises(SystemExit, match=r"10\.2"):
        watched._look_for_hang(hang)


@pytest.mark.parametrize(("apart", "ends"), [(False, []), (True, [130])])
def test_a_second_ctrl_c_ends_a_run_at_once_unless_a_launcher_repeats_the_first(
    monkeypatch: pytest.MonkeyPatch, apart: bool, ends: list[int]
) -> None:
    """torchrun of torch 2.1 leaves its ranks at the terminal, and hands on what they get from there too."""
    left: list[int] = []
    monkeypatch.setattr(signals, "_AT_ONCE", 0.0 if apart else 60.0)
    handler = signals.Signals(left.append)  # type: ignore[arg-type]
    try:
        handler.give_to(watch.Watch(Ranks(), 1.0))
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        handler.hand_back()
    assert left == ends


@pytest.mark.long
@pytest.mark.chosen
def test_compiled_training_goes_on_with_plain_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch.compile, whose code is then run as it is: no compiler is needed, and no bit differs."""
    calls: list[object] = []

    def traced(graph: Any, _inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=traced))
    runs = {name: new_run(tmp_path, name) for name in ("plain", "compiled")}
    for name, each in runs.items():
        each.write("Line", batch_size=20, epochs=2, ema=0.9, compile=name == "compiled", log_every=1)
    runs["plain"].here()
    assert calls == []
    runs["compiled"].here(SLURMGPU_MAX_STEPS="3")
    runs["compiled"].here()
    assert calls
    assert runs["compiled"].losses() == runs["plain"].losses()
    assert same(runs["compiled"].parameters(), runs["plain"].parameters())


def test_all_settings_for_speed_can_be_on_where_there_is_no_gpu(run: RunFolder) -> None:
    run.write("Line", batch_size=20, deterministic=True, channels_last=True, tf32=True, cudnn_benchmark=True)
    try:
        run.here()
    finally:
        torch.use_deterministic_algorithms(False)
    assert run.checkpoints() == ["step-5"]


MISTAKE = "a mistake in evaluate"


def test_what_breaks_after_a_mistake_in_evaluate_does_not_hide_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As all does on a GPU on which an assertion has failed."""

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    run.write("Tested", batch_size=20, sanity=False)
    monkeypatch.setenv("SMALL_TEST_FAULT", "raise:2")
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "take", broken)
        with pytest.raises(ValueError, match=MISTAKE):
            run.here()
    assert "warning: CUDA error" in capsys.readouterr().out
    monkeypatch.setattr(evaluation, "restore_random_state", broken)
    with pytest.raises(ValueError, match=MISTAKE) as caught:
        run.here()
    assert caught.value.__context__ is None


def test_parameters_that_a_failed_evaluate_has_changed_are_not_saved(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write("Averaged", epochs=2, batch_size=20)
    monkeypatch.setenv("SMALL_TEST_FAULT", "raise:4")
    with pytest.raises(ValueError, match=MISTAKE):
        run.here()
    assert "evaluate failed after step 10 and left the model's parameters changed" in capsys.readouterr().out
    assert run.checkpoints() == ["step-5"]


def test_a_mistake_in_the_last_evaluation_is_made_up_for_and_the_training_is_done(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It costs no line; more epochs go on from there as in a training without it."""
    undisturbed = new_run(tmp_path, "undisturbed")
    for each in (undisturbed, run):
        each.write("Tested", epochs=2, batch_size=20, log_every=4)
    undisturbed.here()
    with monkeypatch.context() as patch:
        patch.setenv("SMALL_TEST_FAULT", "raise:4")
        with pytest.raises(ValueError, match=MISTAKE):
            run.here()
    run.here()
    assert [line["step"] for line in run.metrics("train")] == [4, 8, 10]
    capsys.readouterr()
    run.here()
    assert "already done: 2 epochs, 10 steps, test loss" in capsys.readouterr().out
    for each in (undisturbed, run):
        each.write("Tested", epochs=3, batch_size=20, log_every=4)
        each.here()
    assert run.losses() == undisturbed.losses()
    assert [line["step"] for line in run.metrics("eval")] == [5, 10, 15]


def test_a_wrong_end_time_is_named(run: RunFolder) -> None:
    run.write("Line", batch_size=20)
    with pytest.raises(SettingsError, match="SLURMGPU_END_TIME is 'noon'"):
        run.here(SLURMGPU_END_TIME="noon")
