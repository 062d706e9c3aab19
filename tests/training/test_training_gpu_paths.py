"""What only happens on GPUs, as far as it can be seen without one: pretended devices, replicas, late lines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slurmgpu.training.build import Training
from slurmgpu.training.evaluation import Evaluation
from slurmgpu.training.generators import capture_random_state, restore_random_state
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.session import Session
from slurmgpu.training.settings import Config, Settings
from slurmgpu.training.setup import make_model, spread
from slurmgpu.training.task import Task
from slurmgpu.training.trainer import Trainer
from slurmgpu.training.watching.pace import Pace

from .conftest import RunFolder

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 20, "lr": 0.05, "log_every": 1}
CPU, GPU = Group(Ranks(), torch.device("cpu")), Group(Ranks(), torch.device("cuda", 0))


class User:
    """A task whose model is one block."""

    def model(self, cfg: Config) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2))

    def dataset(self, cfg: Config, split: str) -> None:
        """Not asked for here."""

    def loss(self, model: nn.Module, batch: Any) -> None:
        """Nor this."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [model[0]]  # type: ignore[index]


def replica_of(model: nn.Module) -> Any:
    """As DataParallel makes it, without parameters at first."""
    replica = model._replicate_for_data_parallel()
    child = model[0]._replicate_for_data_parallel()  # type: ignore[index, operator, union-attr]
    child.weight, child.bias = torch.zeros(2, 2, requires_grad=True), torch.full((2,), 7.0)
    replica._modules["0"] = child
    return replica


def test_a_replica_computes_its_activations_again_with_its_own_parameters() -> None:
    settings = Settings(task="task.py:User", activation_checkpointing=True)
    model = make_model(Task(User, Path("task.py")), Config(settings), settings, torch.device("cpu"))
    names = list(model.state_dict())
    answer = replica_of(model)(torch.ones(1, 2))
    assert answer.tolist() == [[7.0, 7.0]]
    answer.sum().backward()
    assert names == ["0.weight", "0.bias"]


def test_replicas_in_threads_compute_in_the_precision_asked_for() -> None:
    settings = Settings(task="task.py:User", strategy="dp", precision="bf16")
    model = spread(nn.Sequential(nn.Linear(2, 2)), settings, CPU)
    found: list[torch.dtype] = []
    thread = threading.Thread(target=lambda: found.append(replica_of(model)(torch.ones(1, 2)).dtype))
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]


def test_late_lines_of_a_gpu_come_before_a_save(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume from it does not write them again."""
    monkeypatch.setattr(Trainer, "_writes_late", True)
    found: dict[int, list[int]] = {}
    save = Session.save

    def look(self: Session, step: int, *rest: Any) -> None:
        found[step] = [line["step"] for line in run.metrics("train")]
        save(self, step, *rest)

    monkeypatch.setattr(Session, "save", look)
    run.write("Line", checkpoint_steps=3, **SETTINGS)
    run.here()
    assert len(found) > 2
    assert found == {step: list(range(1, step + 1)) for step in found}


def test_a_late_line_of_a_gpu_is_of_its_own_interval(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line, too; and what the GPU does in an evaluation is none of it."""
    monkeypatch.setattr(Trainer, "_writes_late", True)
    monkeypatch.setattr(Pace, "values", lambda self, _seconds: {"slowest_rank": self._watch.step})
    evaluating: list[bool] = []

    def look(self: Evaluation, model: Any) -> Any:
        evaluating.append(loops[0].gauges.paused)
        return evaluate(self, model)

    loops: list[Training] = []
    connect, evaluate = Training.connect, Evaluation.run
    monkeypatch.setattr(Training, "connect", lambda self: (loops.append(self), connect(self)))
    monkeypatch.setattr(Evaluation, "run", look)
    run.write("Counted", **{**SETTINGS, "log_every": 3})
    run.here()
    seen = [(line["step"], line["values"]["slowest_rank"]) for line in run.metrics("train")]
    assert seen == [(step, step) for step in (3, 6, 9, 10)]
    assert evaluating == [True, True]
    assert not loops[0].gauges.paused


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def test_with_several_gpus_the_random_states_of_all_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device.index])
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states))
    captured = capture_random_state(GPU.device)
    restored: dict[Any, Any] = {}
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda all: restored.update(enumerate(all)))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda one, device: restored.update({device.index: one}))
    restore_random_state(captured, GPU.device)
    assert restored == {0: states[0], 1: states[1]}
    restored.clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    restore_random_state(captured, GPU.device)
    assert restored == {0: states[0]}, "with another number of GPUs only its own"
