"""What a task has beside its model: a loss with tensors of its own, a teacher, data that lie on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from slurmgpu.training import data
from slurmgpu.training.aux_modules import AuxModules
from slurmgpu.training.errors import SettingsError, TrainingError
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.settings import Settings
from slurmgpu.training.watching.advice import memory_advice

from .conftest import RunFolder
from .test_training_gpu_paths import CPU, GPU, OnGpu

GLOBAL = nn.CrossEntropyLoss(weight=torch.ones(2))
META = torch.device("meta")

START = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Task:
    def model(self, cfg):
        return nn.Linear(3, 2)

    def dataset(self, cfg, split):
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, (x[:, 0] > 0).long()) if split == "train" else None

    def __init__(self):
        self.criterion = Weighted()

    def loss(self, model, batch):
        return self.criterion(model(batch[0]), batch[1])

class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(()))
"""


def task(run: RunFolder, *lines: str) -> str:
    """A task whose criterion's forward has these lines."""
    path = run.path.parent / f"{run.path.parent.name}.py"  # a module's name is taken once
    path.write_text(
        START + "\n    def forward(self, output, target):\n" + "".join(f"        {one}\n" for one in lines)
    )
    return f"{path}:Task"


PLAIN = "return nn.functional.cross_entropy(output, target) * self.scale.detach()"


def test_the_modules_that_a_loss_uses_are_brought_to_the_device() -> None:
    """By whatever way it names them; a module of the data set's stays where its workers are."""

    class Base:
        def __init__(self) -> None:
            self.criterion = nn.CrossEntropyLoss(weight=torch.ones(2))
            self.teacher, self.views = nn.Linear(2, 2), [nn.Linear(2, 2)]
            self.augment = nn.BatchNorm1d(2)

        def dataset(self, _cfg: Any, _split: str) -> Any:
            return self.augment

        def loss(self, model: Any, batch: Any) -> Any:
            return self._sum(model, batch) + GLOBAL(model, batch)

        def _sum(self, model: Any, batch: Any) -> Any:
            return sum(view(batch) for view in self.views) + self.criterion(model, batch)

    class User(Base):
        def loss(self, model: Any, batch: Any) -> Any:
            return super().loss(model, batch)

        @torch.no_grad()
        def evaluate(self, _model: Any, batch: Any) -> Any:
            return self.teacher(batch)

    before, user = GLOBAL.weight, User()
    AuxModules(user, nn.Linear(1, 1), META)
    moved = [user.criterion.weight, user.teacher.weight, user.views[0].weight, GLOBAL.weight]
    GLOBAL.weight = before
    assert [one.device for one in moved if one is not None] == [META] * 4  # type: ignore[union-attr]
    assert user.augment.weight.device == torch.device("cpu")


def test_a_loss_that_is_itself_a_module_is_brought_to_the_device() -> None:
    class User:
        loss = nn.NLLLoss(weight=torch.ones(2))

    AuxModules(User(), nn.Linear(1, 1), META)
    assert User.loss.weight.device == META


def test_the_training_brings_the_criterion_along(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the task makes it as late as in its dataset, from the classes there."""
    moved: list[tuple[str, str]] = []
    to = nn.Module.to

    def look(self: nn.Module, *where: Any, **named: Any) -> nn.Module:
        moved.append((type(self).__name__, str(where[0] if where else named["device"])))
        return to(self, *where, **named)

    monkeypatch.setattr(nn.Module, "to", look)
    run.write(task(run, PLAIN), batch_size=20)
    run.here()
    assert ("Linear", "cpu") in moved
    assert ("Weighted", "cpu") in moved


def test_an_optimizer_of_parameters_that_no_checkpoint_holds_is_refused(run: RunFolder) -> None:
    name = task(run, PLAIN)
    path = Path(name.rpartition(":")[0])
    own = (
        "    def optimizer(self, model, cfg):\n"
        "        return torch.optim.SGD([*model.parameters(), self.criterion.scale], lr=0.1)\n"
    )
    path.write_text(path.read_text().replace("class Weighted", f"{own}\nclass Weighted"))
    run.write(name, batch_size=20)
    with pytest.raises(
        TrainingError, match=r"trains 1 parameter\(s\) that are not the model's \(criterion.scale\)"
    ):
        run.here()
    assert run.checkpoints() == []


@pytest.mark.parametrize(
    ("line", "noted"), [("self.seen += 1", 1), ("self.seen = self.seen + 1", 1), ("pass", 0)]
)
def test_what_a_loss_keeps_and_no_checkpoint_holds_is_said_once(
    run: RunFolder, capsys: pytest.CaptureFixture[str], line: str, noted: int
) -> None:
    run.write(task(run, line, PLAIN), batch_size=20, epochs=3)
    run.here()
    assert capsys.readouterr().out.count("note: criterion.seen of the task changes while it trains") == noted


# Data on the GPU


class Kept(Dataset[Any]):
    """A data set with its samples in an attribute of its own."""

    def __init__(self, **kept: Any) -> None:
        self.__dict__.update(kept)

    def __len__(self) -> int:
        return 3


def on_gpu() -> torch.Tensor:
    return torch.ones(3).as_subclass(OnGpu)


DATA: list[Callable[[], Any]] = [
    lambda: TensorDataset(on_gpu()),
    lambda: Subset(TensorDataset(on_gpu()), [0]),
    lambda: ConcatDataset([TensorDataset(torch.ones(3)), TensorDataset(on_gpu())]),
    lambda: Kept(images=torch.ones(3), labels=on_gpu()),
    lambda: Kept(parts={"train": [on_gpu()]}),
]


@pytest.mark.parametrize("made", DATA)
def test_data_on_the_gpu_get_no_workers_however_they_are_kept(made: Callable[[], Any]) -> None:
    dataset = made()
    assert data.count_workers("auto", GPU, dataset) == 0
    assert data.count_workers(0, GPU, dataset) == 0
    with pytest.raises(
        SettingsError, match=r"workers is 2, and the data set \w+ holds a tensor on .*workers: 0"
    ):
        data.count_workers(2, GPU, dataset)


def test_data_on_the_cpu_keep_their_workers() -> None:
    dataset = Kept(images=[torch.ones(3)] * 3, name="a", parent=None)
    assert data.count_workers(2, GPU, dataset) == 2
    assert data.count_workers(2, CPU, dataset) == 2
    assert data.count_workers("auto", CPU, dataset) == 0


# A GPU's memory that is full


FULL = "raise torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"


def test_a_full_gpu_is_met_with_what_would_help(run: RunFolder) -> None:
    run.write(task(run, FULL), batch_size=20, accumulate=2)
    ended = run.ranks()
    assert ended.codes == [1]
    assert "CUDA out of memory. Tried to allocate 2.00 GiB." in ended.err
    assert (
        ended.err.splitlines()[-5:]
        == [
            "error: the GPU's memory is full; micro-batch 10 (batch_size 20 = 1 x 2 x 10), fp32",
            "what takes less of it, and trains on the same batch:",
            "  accumulate: 4   micro-batches of 5 in place of 10; or more GPUs, which divide the batch, too",
            "  precision: bf16   activations of half the size",
            "  activation_checkpointing: true   activations are computed again; the task names them in blocks(model)",
            "  a GPU with more memory   resources.gpu_type; slurmgpu cluster show lists them",
        ][-5:]
    )
    assert "the GPU's memory is full; micro-batch 10" in ended.err
    assert not (run.path / "state" / "stop.json").exists(), "it is not started again: that would end alike"


@pytest.mark.parametrize(
    "line", ["raise ValueError('x')", "raise RuntimeError('out of memory')", "raise MemoryError"]
)
def test_other_errors_get_no_such_advice(run: RunFolder, line: str) -> None:
    run.write(task(run, line), batch_size=20)
    ended = run.ranks()
    assert ended.codes == [1]
    assert "memory is full" not in ended.err


def test_the_figures_are_the_gpus_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    about = SimpleNamespace(name="NVIDIA A100-SXM4-40GB")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: about)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 30 * gib)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 31 * gib)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (gib, 40 * gib))
    group = Group(Ranks(0, 0, 4, 4), torch.device("cuda", 0))
    settings = Settings(task="task.py:T", batch_size=12, precision="fp16", activation_checkpointing=True)
    text = memory_advice(torch.cuda.OutOfMemoryError("CUDA out of memory"), settings, group)
    assert text.startswith(
        "the GPU's memory is full: NVIDIA A100-SXM4-40GB with 40.0 GiB, of which this process had 30.0 GiB at its peak, "
        "and other processes and CUDA itself have 8.0 GiB; micro-batch 3 (batch_size 12 = 4 x 1 x 3), fp16\n"
    )
    assert "before a batch came" in text
    assert "accumulate" not in text, "it does not help a model that is too large"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Expected all tensors to be on the same device, but found", "those that loss uses are moved"),
        ("Cannot re-initialize CUDA in forked subprocess.", "set workers: 0"),
    ],
)
def test_what_torch_says_of_devices_comes_with_what_to_do(run: RunFolder, words: str, hint: str) -> None:
    run.write(task(run, f"raise RuntimeError({words!r})"), batch_size=20)
    ended = run.ranks()
    assert ended.codes == [1]
    assert hint in ended.err.splitlines()[-1]
