"""The code of docs/evaluation.md and docs/callbacks.md: each block is a part of a task, and a task that has it trains."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from .conftest import ROOT, RunFolder

# Where the package alone is tested, the docs are missing.
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the docs are not here")
BASES = __name__


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)


def block(page: str, words: str, language: str = "python") -> str:
    """The page's only block with these words."""
    (found,) = [each for each in blocks(page, language) if words in each]
    return found


class Digits:
    """Two classes; what the pages do not show of their task."""

    def model(self, cfg: Any) -> nn.Module:
        return nn.Linear(3, 2)

    def load(self, name: str) -> Dataset[Any]:
        x = torch.randn(
            {"train": 40, "val": 15, "long": 5}[name], 3, generator=torch.Generator().manual_seed(1)
        )
        return TensorDataset(x, (x.sum(1) > 0).long())

    def dataset(self, cfg: Any, split: str) -> Any:
        return self.load("val" if split == "test" else "train")

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, label = batch
        return nn.functional.cross_entropy(model(x), label)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, label = batch
        right = (model(x).argmax(1) == label).sum()
        return {"loss": (0.05 * len(x), len(x)), "accuracy": (right, len(x)), "val/accuracy": (right, len(x))}


class Finder(nn.Module):
    """Finds i % 3 boxes in the image that has the number i."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = nn.Parameter(torch.zeros(4))

    def forward(self, images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        counts = [int(image) % 3 for image in images]
        corners = torch.tensor([10.0, 10.0, 20.0, 20.0])
        return [
            {"boxes": (corners + self.moved).expand(n, 4), "scores": torch.rand(n), "labels": torch.arange(n)}
            for n in counts
        ]


class Boxes:
    """A network that finds boxes, and finds all of them."""

    def model(self, cfg: Any) -> nn.Module:
        return Finder()

    def dataset(self, cfg: Any, split: str) -> Any:
        return [torch.tensor(float(i)) for i in range(8)]

    def collate(self, samples: list[torch.Tensor]) -> Any:
        images = torch.stack(samples)
        return images, [
            {name: each[name].detach() for name in ("boxes", "labels")} for each in Finder()(images)
        ]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return torch.cat([each["boxes"] for each in model(batch[0])]).sum() * 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    sys.modules.pop("page_task", None)


def train(run: RunFolder, folder: Path, code: str, base: str = "Digits", **settings: Any) -> dict[str, float]:
    """Train a task that has the code in its class; what the last evaluation has found."""
    imports = f"import shutil, torch\nfrom pathlib import Path\nfrom {BASES} import {base}\n"
    modules = re.findall(r"\b(sklearn|torchmetrics)(\.\w+)?\b", code)
    imports += "".join(f"import {''.join(each)}\n" for each in modules)
    text = f"{imports}\nclass Task({base}):\n{textwrap.indent(code, '    ')}"
    (folder / "page_task.py").write_text(text)
    sys.modules.pop("page_task", None)
    run.write(f"{folder / 'page_task.py'}:Task", **{"batch_size": 8, "epochs": 2, "log_every": 1, **settings})
    run.here()
    values: dict[str, float] = run.metrics("eval")[-1]["values"]
    return values


@pytest.mark.parametrize("key", ["best", "early_stop"])
def test_metrics_that_are_judged(run: RunFolder, folder: Path, key: str) -> None:
    yaml = pytest.importorskip("yaml", reason="yaml is not here, where torch is alone")
    settings = yaml.safe_load(block("evaluation.md", f"  {key}:", "yaml"))["train"]
    train(run, folder, "pass\n", epochs=9, **{key: settings[key]})
    ended = run.metrics("end")[0]["values"]
    assert ended["reason"] == ("early_stop" if key == "early_stop" else "epochs")


def test_several_test_sets(run: RunFolder, folder: Path) -> None:
    assert {"val/accuracy", "long/accuracy"} <= train(run, folder, block("evaluation.md", '"long"')).keys()


def test_metrics_that_are_no_sums(run: RunFolder, folder: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    values = train(run, folder, block("evaluation.md", "sklearn"))
    assert 0 <= values["auc"] <= 1
    assert metrics.roc_auc_score([0, 1], [0.1, 0.2]) == 1, "what the page calls"


class StandIn:
    """In place of torchmetrics' MeanAveragePrecision, which needs torchvision and pycocotools: the images that are right."""

    def __init__(self, *, sync_on_compute: bool) -> None:
        assert not sync_on_compute

    def update(self, found: list[Any], truth: list[Any]) -> None:
        self.right = [torch.equal(a["boxes"], b["boxes"]) for a, b in zip(found, truth)]
        assert [len(each["scores"]) for each in found] == [number % 3 for number in range(8)]

    def compute(self) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("map", "map_50"), torch.tensor(self.right).double().mean())


def test_lists_of_boxes(run: RunFolder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.import_module("torchmetrics.detection").MeanAveragePrecision()
    except (ImportError, AttributeError):
        for name in ("torchmetrics", "torchmetrics.detection"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        package, detection = sys.modules["torchmetrics"], sys.modules["torchmetrics.detection"]
        monkeypatch.setattr(package, "detection", detection, raising=False)
        monkeypatch.setattr(detection, "MeanAveragePrecision", StandIn, raising=False)
    values = train(run, folder, block("evaluation.md", "sync_on_compute"), "Boxes")
    assert (values["map"], values["map_50"]) == (1.0, 1.0)


def test_callbacks(run: RunFolder, folder: Path) -> None:
    code = block("callbacks.md", "on_save").replace("/backup", str(folder / "backup"))
    (folder / "backup").mkdir()
    train(run, folder, code + "\ndef on_end(self, model, results):\n    assert self.hard_samples\n", keep=9)
    assert sorted(path.name for path in (folder / "backup").iterdir()) == run.checkpoints()


def test_a_state_of_the_tasks_own(run: RunFolder, folder: Path) -> None:
    code = block("callbacks.md", "load_state_dict") + textwrap.dedent("""
        def on_step_end(self, model, step):
            self.level += 1
            self.buffer.append(step)
        """)
    train(run, folder, code, max_steps=4)
    train(run, folder, code)
    state = torch.load(run.path / "checkpoints/step-10/rank-0.pt", weights_only=True)
    assert state["task"] == {"level": 10, "buffer": list(range(1, 11))}, "it is kept over a stop"


def test_no_code_of_the_pages_is_left_out() -> None:
    assert {page: len(blocks(page)) for page in ("evaluation.md", "callbacks.md")} == {
        "evaluation.md": 3,
        "callbacks.md": 2,
    }, "a block that is new needs a test here"
