"""train.json: keys, defaults, messages, and its twin on the side of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.fsdp

from slurmgpu.training import trainer
from slurmgpu.training.errors import SettingsError
from slurmgpu.training.formats.settings import NOT_INTERLEAVED, TRAIN_SCHEMA
from slurmgpu.training.settings import Config, Settings, load, micro_batch, parse

try:
    from pydantic import ValidationError

    from slurmgpu.errors import PlanError
    from slurmgpu.models.train import TrainSettings
except ImportError:
    TrainSettings = None  # type: ignore[assignment, misc]
twin = pytest.mark.skipif(TrainSettings is None, reason="the command line's settings need Pydantic")

VALID: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"precision": "bf16"},
    {"strategy": "dp"},
    {"drop_last": True, "schedule": "cosine", "warmup_steps": 5},
    {"schedule": "wsd", "warmup_steps": "2.5%", "decay_steps": 7, "min_lr": "10%", "no_decay": True},
    {"min_lr": 1e-5, "log_grad_norm": True},
    {"nonfinite": "skip", "freeze": ["encoder.*", "*.bias"], "deterministic": True},
    {"tf32": False, "cudnn_benchmark": False, "channels_last": True, "compile": True},
    {"activation_checkpointing": True, "init_scale": 1024.0},
    {"find_unused_parameters": True, "static_graph": True, "bucket_cap_mb": 1.5},
    {"evaluate_every": None, "evaluate_steps": 50},
    {"best": {"metric": "val/accuracy", "mode": "max"}},
    {"early_stop": {"metric": "loss", "mode": "min", "patience": 3, "min_delta": 0.5}},
    {"checkpoint_steps": 100, "keep_every": 1000, "stop_margin": 0.0, "hang_timeout": None},
    {"checkpoint_steps": 1, "checkpoint_shared_steps": 100, "checkpoint_node_folder": "/local/$USER"},
    {"profile": True, "profile_after": 0, "profile_steps": 3},
    {"track": ["tensorboard", "wandb"], "peak_flops": 2.25e15},
    {"micro_batch": "auto", "fit_head_room": 0.25},
    {"micro_batch": 7, "eval_micro_batch": 3, "fit_head_room": 0},
    {"pretrained": "weights.pt", "pretrained_rename": {"backbone.": ""}, "pretrained_strict": False},
    {"max_steps": 7, "lr": 1, "clip_norm": 0.5, "weight_decay": 0, "workers": 0},
    {"max_steps": None, "workers": "auto"},
    {"config": {"hidden": 64, "layers": [1, 2], "deep": {"er": None}}},
]
WRONG_BEST: list[dict[str, Any]] = [{"mode": "most"}, {"mode": "max", "patience": 1}]
WRONG_EARLY_STOP: list[dict[str, Any]] = [{}, {"patience": 0}, {"patience": 1, "min_delta": -1}]
WRONG: dict[str, list[Any]] = {
    "task": ["task.py", "task.py:1", "Digits"],
    "pretrained": ["", ["weights.pt"]],
    "pretrained_rename": [{"backbone.": 1}, ["backbone."]],
    "pretrained_strict": ["no"],
    "strategy": ["horovod"],
    "precision": ["fp8"],
    "epochs": [0, True, 1.0],
    "max_steps": [0],
    "batch_size": ["64"],
    "accumulate": [0],
    "micro_batch": [0, "most", True],
    "fit_head_room": [1, True],
    "eval_micro_batch": ["auto"],
    "lr": ["1e-3", 0, float("nan"), float("inf")],
    "weight_decay": [-1],
    "track": ["wandb", ["mlflow"]],
    "peak_flops": [0],
    "clip_norm": [0],
    "drop_last": [1],
    "schedule": ["step"],
    "warmup_steps": [-1, "5", "101%", 0.05],
    "decay_steps": [0, "-1%"],
    "min_lr": [-1e-5, "ten%", True],
    "no_decay": [1],
    "log_grad_norm": [None],
    "nonfinite": ["warn"],
    "freeze": ["encoder.*", [1]],
    "deterministic": ["yes"],
    "init_scale": [0],
    "bucket_cap_mb": [0],
    "checkpoint_steps": [0],
    "checkpoint_shared_steps": [100],
    "checkpoint_node_folder": ["/local"],
    "checkpoint_every": [0],
    "keep": [0],
    "keep_every": [0],
    "stop_margin": [-1],
    "hang_timeout": [0],
    "seed": [-1, 2**64],
    "workers": ["many", -1, True],
    "evaluate_every": [0],
    "evaluate_steps": [0],
    "best": ["accuracy", {"metric": "accuracy"}, *({"metric": "accuracy", **more} for more in WRONG_BEST)],
    "early_stop": [{"metric": "loss", "mode": "min", **more} for more in WRONG_EARLY_STOP],
    "resume": ["yes", 1],
    "log_every": [0],
    "checksum_steps": [0],
    "profile": [1],
    "profile_after": [-1],
    "profile_steps": [0],
    "timeout": [0],
    "config": [[1], {"not a name": 1}, {"seed": 1}],
    "learning_rate": [0.1],
}
INVALID: list[dict[str, Any]] = [
    *({setting: value} for setting, values in WRONG.items() for value in values),
    {"static_graph": True, "accumulate": 2},
    *({"static_graph": True, "micro_batch": value} for value in ("auto", 2, 1)),
    *({"micro_batch": value, "accumulate": 2} for value in ("auto", 8)),
    {"checkpoint_shared_steps": 100, "checkpoint_steps": 100},
    {"checkpoint_shared_steps": 0, "checkpoint_steps": 1},
    {"checkpoint_node_folder": "", "checkpoint_steps": 1, "checkpoint_shared_steps": 100},
]


@twin
@pytest.mark.parametrize("values", VALID, ids=str)
def test_both_sides_accept_the_same_and_read_it_alike(values: dict[str, Any]) -> None:
    document = TrainSettings.model_validate({"task": "task.py:Digits", **values}).document()
    assert parse(json.loads(json.dumps(document))).as_dict() == {
        **Settings(task="task.py:Digits").as_dict(),
        **values,
    }


@twin
@pytest.mark.parametrize("values", INVALID, ids=str)
def test_the_command_line_refuses_the_same_and_names_the_key(values: dict[str, Any]) -> None:
    name = next(iter(values))
    with pytest.raises(ValidationError) as model:
        TrainSettings.model_validate({"task": "task.py:Digits", **values})
    assert model.value.errors()[0]["loc"][0] == name


@pytest.mark.parametrize("values", INVALID, ids=str)
def test_the_entrypoint_refuses_it_and_names_the_key(values: dict[str, Any]) -> None:
    name = next(iter(values))
    with pytest.raises(SettingsError, match=name):
        parse({"schema": TRAIN_SCHEMA, "task": "task.py:Digits", **values})


@twin
def test_every_setting_is_described() -> None:
    for name, field in TrainSettings.model_fields.items():
        assert field.description, name


def test_an_unknown_key_names_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="unknown key 'batchsize'; did you mean 'batch_size'"):
        parse({"schema": TRAIN_SCHEMA, "task": "task.py:Digits", "batchsize": 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold a mapping"),
        ('{"task": "a.py:B"}', "schema is None"),
        ('{"schema": "slurmgpu.train/2", "task": "a.py:B"}', "reads 'slurmgpu.train/1'"),
        ('{"schema": "slurmgpu.train/1"}', "task is missing"),
    ],
)
def test_a_file_that_is_no_train_json_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


@twin
def test_the_batch_is_divided_by_processes_and_accumulation_on_both_sides() -> None:
    values: dict[str, Any] = {"task": "task.py:Digits", "batch_size": 96, "accumulate": 3}
    assert micro_batch(Settings(**values), 4) == TrainSettings(**values).samples_at_a_time(4) == 8


@twin
@pytest.mark.parametrize(("batch", "nearest"), [(100, 102), (98, 96), (2, 6)])
def test_a_batch_that_does_not_divide_names_all_figures_and_the_nearest(batch: int, nearest: int) -> None:
    values: dict[str, Any] = {"task": "task.py:Digits", "batch_size": batch, "accumulate": 3}
    message = (
        f"batch_size {batch} does not divide by 6 (world size 2 x accumulate 3); "
        f"the nearest batch_size is {nearest}"
    )
    with pytest.raises(SettingsError) as plain:
        micro_batch(Settings(**values), 2)
    with pytest.raises(PlanError) as planned:
        TrainSettings(**values).samples_at_a_time(2)
    assert str(plain.value) == message
    in_a_job = f"(write batch_size: {nearest} under train:, or --set train.batch_size={nearest})"
    assert str(planned.value) == f"train.{message} {in_a_job}"


def test_a_task_reads_settings_and_its_own_config_as_attributes() -> None:
    cfg = Config(Settings(task="task.py:Digits", lr=0.5, config={"hidden": 64}))
    assert (cfg.lr, cfg.hidden, getattr(cfg, "depth", 2)) == (0.5, 64, 2)
    with pytest.raises(AttributeError, match=r"cfg\.hiden is neither .* did you mean 'hidden'"):
        _ = cfg.hiden
    with pytest.raises(AttributeError, match="read-only"):
        cfg.hidden = 3


def test_settings_of_earlier_versions_are_read_where_they_asked_for_nothing() -> None:
    """As earlier versions wrote them into each train.json; other values are refused, with what to write instead."""
    earlier = {
        "schema": TRAIN_SCHEMA, "task": "task.py:T", "tensor_parallel": 1, "stages_each": 1,
        "gradient_as_bucket_view": True, "strategy": "fsdp2",
    }  # fmt: skip
    assert parse(earlier) == Settings("task.py:T", strategy="fsdp2")
    removed = {
        "tensor_parallel": 4,
        "stages_each": 2,
        "pipeline_schedule": "interleaved",
        "gradient_as_bucket_view": False,
    }
    for name, value in removed.items():
        with pytest.raises(SettingsError, match=f"x: {name} .*has been removed.*(Megatron-LM|leave it out)"):
            parse({**earlier, name: value}, "x")


@twin
def test_the_command_line_says_what_takes_the_place_of_an_interleaved_schedule() -> None:
    with pytest.raises(ValidationError) as error:
        TrainSettings.model_validate({"task": "task.py:T", "pipeline_schedule": "interleaved"})
    assert error.value.errors()[0]["msg"].removeprefix("Value error, ") == NOT_INTERLEAVED


CLASHES: list[tuple[dict[str, Any], int, str]] = [
    ({"strategy": "ddp", "meta_device": True}, 1, "train.meta_device is true, and train.strategy is ddp"),
    ({"strategy": "fsdp2", "pipeline_stages": 2}, 2, "pipeline_stages is 2, and train.strategy is fsdp2"),
    ({"strategy": "pipeline", "pipeline_stages": 3}, 4, "pipeline_stages is 3, and the job has 4 processes"),
    ({"strategy": "model_parallel", "compile": True}, 1, "compile is true, and train.strategy is model_"),
    ({"strategy": "model_parallel", "micro_batch": "auto"}, 1, "micro_batch is auto"),
    ({"strategy": "fsdp2", "cpu_offload": True, "precision": "fp16"}, 2, "precision is fp16, .* fsdp2 with"),
    ({"strategy": "pipeline", "compile": True}, 2, "compile is true, and train.strategy is pipeline"),
    ({"strategy": "pipeline", "micro_batch": "auto"}, 2, "micro_batch is auto"),
    ({"strategy": "pipeline", "ema": 0.9}, 2, "ema is 0.9, and train.strategy is pipeline"),
    ({"strategy": "pipeline", "precision": "fp16"}, 2, "precision is fp16"),
    ({"strategy": "pipeline", "nonfinite": "skip"}, 2, "nonfinite is skip"),
    ({"strategy": "pipeline", "pipeline_stages": 2, "broadcast_buffers": False}, 4, "broadcast_buffers is f"),
]
TOGETHER: list[tuple[dict[str, Any], int]] = [
    ({"strategy": "fsdp2", "meta_device": True}, 4),
    ({"strategy": "fsdp2", "compile": True, "cpu_offload": True, "micro_batch": "auto"}, 2),
    ({"strategy": "fsdp2", "precision": "fp16", "ema": 0.9, "nonfinite": "skip"}, 2),
    ({"strategy": "pipeline", "pipeline_schedule": "gpipe"}, 2),
    ({"strategy": "pipeline", "meta_device": True, "broadcast_buffers": False}, 2),
    ({"strategy": "pipeline", "ema": 0.9, "compile": True}, 1),
    ({"strategy": "ddp", "compile": True, "ema": 0.9, "precision": "fp16", "micro_batch": "auto"}, 8),
]


@twin
@pytest.mark.parametrize(("values", "world_size", "message"), CLASHES)
def test_what_the_entrypoint_would_refuse_is_refused_before_the_job_waits(
    values: dict[str, Any], world_size: int, message: str
) -> None:
    with pytest.raises(SettingsError):
        trainer.check_strategy(Settings("task.py:T", **values), world_size)
    with pytest.raises(PlanError, match=message) as planned:
        TrainSettings(task="task.py:T", **values).require_processes(world_size)
    assert planned.value.hint


@twin
@pytest.mark.parametrize(("values", "world_size"), TOGETHER)
def test_what_the_entrypoint_takes_is_planned(values: dict[str, Any], world_size: int) -> None:
    TrainSettings(task="task.py:T", **values).require_processes(world_size)
    if values["strategy"] != "fsdp2" or hasattr(torch.distributed.fsdp, "fully_shard"):
        trainer.check_strategy(Settings("task.py:T", **values), world_size)


@twin
@pytest.mark.parametrize(
    ("values", "copies"),
    [
        ({"strategy": "pipeline"}, 1),
        ({"strategy": "pipeline", "pipeline_stages": 2}, 4),
        ({"strategy": "fsdp2"}, 8),
    ],
)
def test_processes_that_share_their_samples_count_once(values: dict[str, Any], copies: int) -> None:
    """A batch of 8 in two rounds: eight processes with samples of their own cannot share it out, four pairs can."""
    settings = TrainSettings(task="task.py:T", batch_size=8, accumulate=2, **values)
    if copies <= 4:
        assert settings.samples_at_a_time(8) == 4 // copies
    else:
        with pytest.raises(PlanError, match="does not divide by 16 "):
            settings.samples_at_a_time(8)


@twin
def test_a_setting_that_only_another_strategy_looks_at_is_named() -> None:
    given = TrainSettings(task="task.py:T", strategy="ddp", cpu_offload=True, pipeline_schedule="gpipe")
    offload, schedule = given.without_effect()
    assert "cpu_offload has no effect with strategy: ddp; it is a setting of strategy: fsdp2" in offload
    assert "pipeline_schedule" in schedule
    assert TrainSettings(task="task.py:T", strategy="fsdp2", cpu_offload=True).without_effect() == ()
