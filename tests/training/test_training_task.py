"""Mistakes in a task: each is one sentence that names the file, the method and what is expected."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.errors import TrainingError
from slurmgpu.training.optimizers import make_optimizer
from slurmgpu.training.schedules import make_schedule
from slurmgpu.training.settings import Config, Settings
from slurmgpu.training.task import Task, load

CFG = Config(Settings(task="mine.py:Mine", lr=0.5))
GOOD = """
import torch
class Mine:
    def model(self, cfg): return torch.nn.Linear(1, 1)
    def dataset(self, cfg, split): return [1, 2]
    def loss(self, model, batch): return model(batch).mean()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name in ("mine", "helper"):
        sys.modules.pop(name, None)


def task(folder: Path, text: str = GOOD) -> Task:
    (folder / "mine.py").write_text(text)
    return load(f"{folder}/mine.py:Mine")


def with_method(method: str) -> str:
    return GOOD + f"    def {method}\n"


def test_a_task_needs_no_base_class_and_gets_adamw(folder: Path) -> None:
    mine = task(folder)
    model = mine.model(CFG)
    optimizer = make_optimizer(mine, model, CFG)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert make_schedule(mine, optimizer, CFG, Settings(task="mine.py:Mine"), 10) is None
    loss = mine.loss(model, torch.ones(2, 1))
    assert loss.counted is None
    assert mine.evaluate(model, torch.ones(2, 1), 2)["loss"] == (loss.value * 2, 2)


def test_a_file_that_python_cannot_read_is_named_with_the_line(folder: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"mine\.py, line 4: Python 3\.\d+ cannot read it: .*: def model\(self cfg"
    ):
        task(folder, GOOD.replace("self, cfg): return torch", "self cfg): return torch"))


def test_a_task_imports_its_neighbours(folder: Path) -> None:
    (folder / "helper.py").write_text("SIZE = 3")
    text = "from helper import SIZE\n" + GOOD.replace("Linear(1, 1)", "Linear(SIZE, 1)")
    assert task(folder, text).model(CFG).in_features == 3


def test_a_relative_file_counts_from_the_work_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(GOOD)
    monkeypatch.chdir(folder)
    assert load("mine.py:Mine").path == folder / "mine.py"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("class Mine", "class Other"), "has no class 'Mine'; it has Other"),
        (GOOD.replace("def loss", "def lost"), "Mine has no method loss; expected is loss(model, batch)"),
        (GOOD.replace("(self, cfg, split)", "(self, cfg)"), "Mine.dataset must take dataset(cfg, split)"),
        (GOOD + "    evaluate = 3\n", "Mine.evaluate must be or return a method; got a int"),
        (with_method("prepare(self): pass"), "Mine.prepare must take prepare(cfg)"),
        (with_method("__init__(self, x): pass"), "Mine() must need no arguments"),
        (with_method("state_dict(self): return {}"), "Mine has state_dict and no load_state_dict"),
        (
            with_method("weights(self, d, cfg): pass\n    def order(self, d, cfg, epoch): pass"),
            "Mine has weights and order: each of them decides the order of samples; keep one",
        ),
        (
            with_method("schedule(self, o, cfg, total): pass\n    def epoch_schedule(self, o, cfg): pass"),
            "Mine has epoch_schedule beside schedule",
        ),
    ],
)
def test_a_missing_or_wrong_method_is_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(message)) as error:
        task(folder, text)
    assert str(folder / "mine.py") in str(error.value)


def test_a_missing_file_is_named_with_the_work_folder(folder: Path) -> None:
    with pytest.raises(
        TrainingError, match=rf"there is no file {folder}/none\.py \(work folder {Path.cwd()}"
    ):
        load(f"{folder}/none.py:Mine")


def test_a_name_that_is_taken_is_refused(folder: Path) -> None:
    (folder / "json.py").write_text(GOOD)
    with pytest.raises(TrainingError, match="a module named 'json' is loaded already; rename the file"):
        load(f"{folder}/json.py:Mine")


# Of three samples.
NO_NUMBERS = {
    "weights": ("[1.0, 2.0]", "[0.0] * 3", "[-1.0, 2.0, 2.0]", "[1.0, 2.0, float('nan')]", "None", "'abc'"),
    "lengths": ("[1, 2]", "[-1, 2, 2]", "3", "[[1], [2], [3]]"),
}
WRONG: list[tuple[str, list[Any], str]] = [
    ("model(self, cfg): return 3", [CFG], "a torch.nn.Module; got a int"),
    ("model(self, cfg): return torch.nn.ReLU()", [CFG], "that require a gradient; got a ReLU"),
    ("dataset(self, cfg, split): return None", [CFG], "one to iterate over; got None"),
    ("dataset(self, cfg, split): return []", [CFG], "at least one sample for the split 'train'"),
    ("finish(self, outputs): return 1", [{}], "a mapping of name -> number; got a int"),
    ("finish(self, outputs): return {'a': torch.ones(2)}", [{}], "got {'a': a tensor of shape (2,)}"),
    ("sample(self, m, cfg): return 1", [None, CFG], "name -> text or number; got a int"),
    ("sample(self, m, cfg): return {'a': [1]}", [None, CFG], "text or number; got {'a': a list of 1}"),
    ("evaluate(self, m, b): return {'a': [1]}", [None, None, 1], "need a method finish(outputs)"),
    ("loss(self, m, b): return torch.ones(2)", [None, None], "got a tensor of shape (2,)"),
    ("loss(self, m, b): return 1.0", [None, None], "a pair (sum, count); got a float"),
    ("loss(self, m, b): return 1.0, 2", [None, None], "got a tuple of 2: (a float, a int)"),
    ("evaluate(self, m, b): return 0.9", [None, None, 1], "name -> (sum, count); got a float"),
    ("evaluate(self, m, b): return {'a': 1}", [None, None, 1], "got {'a': a int}"),
    ("evaluate(self, m, b): return {'a': (torch.ones(2), 1)}", [None, None, 1], "without dimensions"),
    ("optimizer(self, m, cfg): return None", [None, CFG], "a torch.optim.Optimizer; got None"),
    ("flops(self, cfg): return 'many'", [CFG], "a number of operations per sample above 0; got a str"),
    *(
        (f"{method}(self, d, cfg): return {answer}", [[1, 2, 3], CFG], "numbers")
        for method, answers in NO_NUMBERS.items()
        for answer in answers
    ),
    (
        "optimizer(self, m, cfg): return torch.optim.LBFGS(m.parameters())",
        [torch.nn.Linear(1, 1), CFG],
        "whose step() needs no arguments, such as a closure; got a LBFGS",
    ),
    ("schedule(self, o, cfg, total): return 1", [None, CFG, 1], "lr_scheduler, or None; got a int"),
    (
        "schedule(self, o, cfg, total): return torch.optim.lr_scheduler.ReduceLROnPlateau(o)",
        [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), CFG, 1],
        "whose step() needs no arguments, because it moves on after every step; got a ReduceLROnPlateau",
    ),
]


@pytest.mark.parametrize(("text", "arguments", "message"), WRONG, ids=[case[0] for case in WRONG])
def test_a_wrong_answer_names_file_method_and_what_is_expected(
    folder: Path, text: str, arguments: list[Any], message: str
) -> None:
    mine, method = task(folder, with_method(text)), text.split("(")[0]
    with pytest.raises(TrainingError, match=re.escape(message)) as error:
        getattr(mine, method)(*arguments)
    assert str(error.value).startswith(f"{folder}/mine.py: Mine.{method} must be or return ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("iter(())", "several of them by name, or None; got a tuple_iterator"),
        ("{'a': [1], 'b': []}", "at least one sample for the split 'test (b)'"),
        ("{'a': [1], 'b/c': [1]}", "names a test set 'b/c'; a name has letters, digits and _ . -"),
        ("{}", "at least one sample for the split 'test'"),
    ],
)
def test_a_wrong_test_set_is_named(folder: Path, answer: str, message: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(message)):
        task(folder, with_method(f"dataset(self, cfg, split): return {answer}")).tests(CFG)


@pytest.mark.parametrize(
    ("answer", "tests"),
    [
        (None, {}),
        ([1], {"": [1]}),
        ({"val": [1], "long": [2]}, {"val": [1], "long": [2]}),
        ({0: 5, 1: 6}, {"": {0: 5, 1: 6}}),
    ],
)
def test_test_sets_may_have_names_or_be_one_or_none(folder: Path, answer: object, tests: object) -> None:
    assert task(folder, with_method(f"dataset(self, cfg, split): return {answer!r}")).tests(CFG) == tests


def test_a_batch_has_an_output_for_each_sample(folder: Path) -> None:
    text = with_method(
        "evaluate(self, m, b): return {'a': torch.ones(3, 2)}\n    def finish(self, o): return {}"
    )
    mine = task(folder, text)
    assert mine.evaluate(torch.nn.ReLU(), None, 3)["a"].shape == (3, 2)
    with pytest.raises(TrainingError, match="a row for each of the batch's 4 samples; got"):
        mine.evaluate(torch.nn.ReLU(), None, 4)


def test_a_loss_that_teaches_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(TrainingError, match=r"Mine\.loss must be or return a loss that depends on the model"):
        task(folder).refuse_constant(torch.ones(()))
