"""The memory of a training, worked out before it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmgpu.training.estimating.arithmetic import made, rows
from slurmgpu.training.estimating.tracing import Facts, trace
from slurmgpu.training.settings import Settings
from slurmgpu.training.task import load

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


def test_at_the_start_a_process_has_the_whole_model_in_memory_or_none_of_it(facts: Facts) -> None:
    settings = Settings("task.py:T", strategy="fsdp2")
    assert made(facts, settings) == WEIGHTS
    assert made(facts, replace(settings, meta_device=True)) == 0


def test_of_a_pipeline_the_largest_stage_counts_with_the_micro_batches_that_wait(facts: Facts) -> None:
    assert facts.stages == {2: (4 * 100 * 200, 4 * 200 * 10)}  # of 8 the task makes none
    settings = Settings(task="t", batch_size=64, accumulate=16, pipeline_schedule="gpipe")
    row = rows(facts, settings, (2,), on_gpu=True, own_step=False)[-1]
    assert (row.strategy, row.parameters, row.micro_batch) == ("pipeline", 4 * 100 * 200, 4)
    quick = rows(facts, replace(settings, pipeline_schedule="1f1b"), (2,), on_gpu=True, own_step=False)[-1]
    assert quick.activations == row.activations // 8  # 2 of 16 micro-batches at a time
    assert quick.total == quick.parameters + quick.gradients + quick.optimizer + quick.activations
