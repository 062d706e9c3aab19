"""The memory of a training, worked out before it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmgpu.training.estimating.arithmetic import made, rows
from slurmgpu.training.estimating.tracing import Facts, trace, trace_split
from slurmgpu.training.settings import Settings
from slurmgpu.training.task import load

from .conftest import has_fsdp2

TASK = """
import torch
from torch import nn

class Task:
    def model(self, cfg):
        return nn.Sequential(nn.Linear(100, 200, bias=False), nn.Linear(200, 10, bias=False))

    def dataset(self, cfg, split):
        return [(torch.zeros(100), torch.zeros(10)) for _ in range(8)] if split == "train" else None

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def stages(self, model, count):
        return {2: [model[0], model[1]]}[count]

    def parallelize(self, model, mesh):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
"""
WEIGHTS = 4 * (100 * 200 + 200 * 10)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    file = tmp_path_factory.mktemp("estimate") / "estimated_task.py"
    file.write_text(TASK)
    settings = Settings(task=f"{file}:Task", ema=0.9)
    return trace(load(settings.task), settings, (2, 8))


def test_what_a_model_keeps_is_what_adamw_and_its_weights_take_to_the_byte(facts: Facts) -> None:
    assert (facts.parameters, facts.gradients, facts.averages) == (WEIGHTS, WEIGHTS, WEIGHTS)
    assert facts.optimizer == 2 * WEIGHTS + 2 * 4  # and a count of steps for each
    # A sample has its inputs and targets, and between the layers what the second one needs in its backward pass.
    low, high = facts.peaks
    assert (high.again - low.again) / (high.samples - low.samples) >= 4 * (100 + 10 + 200)
    assert facts.note is None


def test_processes_share_the_model_out_with_fsdp2_and_not_with_ddp(facts: Facts) -> None:
    found = {
        (row.strategy, row.gpus, row.cpu_offload): row
        for row in rows(facts, Settings(task="t", batch_size=64), (1, 8), on_gpu=True, own_step=False)
    }
    assert found["ddp", 8, False].parameters == WEIGHTS
    assert found["fsdp2", 8, False].parameters == WEIGHTS // 8
    offloaded = found["fsdp2", 8, True]
    assert offloaded.total < found["fsdp2", 8, False].total
    assert offloaded.host == (3 * WEIGHTS + facts.optimizer) // 8
    assert [found[key].micro_batch for key in (("single", 1, False), ("ddp", 8, False))] == [64, 8]


def test_at_the_start_a_process_has_the_whole_model_or_one_parameter_at_a_time(facts: Facts) -> None:
    settings = Settings("task.py:T", strategy="fsdp2")
    assert made(facts, settings) == WEIGHTS
    assert made(facts, replace(settings, meta_device=True)) == 4 * 100 * 200


def test_of_a_pipeline_the_largest_stage_counts_with_the_micro_batches_that_wait(facts: Facts) -> None:
    assert facts.stages == {2: (4 * 100 * 200, 4 * 200 * 10)}  # of 8 the task makes none
    settings = Settings(task="t", batch_size=64, accumulate=16, pipeline_schedule="gpipe")
    row = rows(facts, settings, (2,), on_gpu=True, own_step=False)[-1]
    assert (row.strategy, row.parameters, row.micro_batch) == ("pipeline", 4 * 100 * 200, 4)
    quick = rows(facts, replace(settings, pipeline_schedule="1f1b"), (2,), on_gpu=True, own_step=False)[-1]
    assert quick.activations == row.activations // 8  # 2 of 16 micro-batches at a time
    assert quick.total == quick.parameters + quick.gradients + quick.optimizer + quick.activations


@pytest.mark.skipif(not has_fsdp2(), reason="this torch has no FSDP2")
def test_layers_that_are_split_count_as_the_task_splits_them_or_a_note_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "split_task.py").write_text(TASK)
    settings = Settings(
        f"{tmp_path / 'split_task.py'}:Task", strategy="fsdp2", tensor_parallel=4, batch_size=16
    )
    task = load(settings.task)
    split, note = trace_split(task, settings)
    assert note is None
    assert split is not None
    assert (split.parameters, split.optimizer) == (WEIGHTS // 4, 2 * WEIGHTS // 4 + 2 * 4)
    whole = trace(task, settings)
    assert split.peaks[0].first < whole.peaks[0].first
    found = rows(whole, settings, (8,), on_gpu=True, own_step=False, split=split)
    assert [row.parameters for row in found if row.tensor_parallel == 4] == [WEIGHTS // 8] * 2
    split, note = trace_split(task, replace(settings, tensor_parallel=1))
    assert (split, note) == (None, None)
    task.parallelize = lambda model, _mesh: model.missing  # type: ignore[method-assign]
    split, note = trace_split(task, settings)
    assert split is None
    assert note is not None
    assert "what parallelize does was not found out (AttributeError" in note
