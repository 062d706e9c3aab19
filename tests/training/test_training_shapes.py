"""Sizes that slow tensor cores down are named, once and only where there are tensor cores at work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slurmgpu.training.formats.settings import TRAIN_SCHEMA
from slurmgpu.training.settings import parse
from slurmgpu.training.watching.advice import awkward_sizes, tensor_core_multiple


def test_layers_vocabulary_and_batch_are_named_with_the_next_multiple() -> None:
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(50257, 768),
            "mix": nn.LSTM(768, 100),
            "wide": nn.Linear(768, 770),
            "head": nn.Linear(768, 50257),
        }
    )
    assert awkward_sizes(model, 30, 8) == (
        "note: tensor cores are fastest with sizes that are multiples of 8; these are not: "
        "words.num_embeddings 50257 -> 50264, mix.hidden_size 100 -> 104, wide.out_features 770 -> 776, "
        "head.out_features 50257 -> 50264, and 1 more"
    )
    assert awkward_sizes(nn.Linear(64, 64), 30, 8) == (
        "note: tensor cores are fastest with sizes that are multiples of 8; these are not: the micro-batch 30 -> 32"
    )


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(60, 60, 3, groups=60), nn.Linear(64, 2)),
        nn.Linear(64, 1),
    ],
    ids=["an image and ten classes", "a depthwise convolution", "one output"],
)
def test_sizes_that_do_not_matter_are_left_alone(model: nn.Module) -> None:
    assert awkward_sizes(model, 32, 8) is None


def test_a_layer_inside_is_no_last_one_and_channels_count() -> None:
    said = awkward_sizes(nn.Sequential(nn.Conv2d(3, 30, 3), nn.Linear(64, 10), nn.Linear(10, 10)), 32, 8)
    assert said is not None
    assert "0.out_channels 30 -> 32, 1.out_features 10 -> 16, 2.in_features 10 -> 16" in said


@pytest.mark.parametrize(
    ("capability", "precision", "tf32", "multiple"),
    [
        ((9, 0), "bf16", True, 8), ((7, 0), "fp16", True, 8), ((6, 1), "fp16", True, None),
        ((8, 0), "fp32", True, 4), ((8, 0), "fp32", False, None), ((7, 5), "fp32", True, None),
    ],
)  # fmt: skip
def test_the_multiple_depends_on_gpu_and_precision(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    precision: str,
    tf32: bool,
    multiple: int | None,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    settings = parse({"schema": TRAIN_SCHEMA, "task": "task.py:Task", "precision": precision, "tf32": tf32})
    assert tensor_core_multiple(settings, torch.device("cuda", 0)) == multiple
    assert tensor_core_multiple(settings, torch.device("cpu")) is None
