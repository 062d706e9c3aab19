"""A resumed training beside one that was never stopped, with tasks that leave something behind between their steps."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch

from slurmgpu.training.errors import TrainingError
from slurmgpu.training.generators import put_back, states_of
from slurmgpu.training.optimizers import load_state
from slurmgpu.training.saving.snapshot import Snapshot

from .conftest import RunFolder, new_run
from .test_training_hooks import alike

START = """
import random
import torch
from torch import nn
from small import Line, Restless


"""


@pytest.fixture(autouse=True)
def small_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def write(run: RunFolder, text: str, **settings: object) -> None:
    """A run directory with a task of its own, ``Task``."""
    (run.path / "hooked.py").write_text(START + text)
    run.write(f"{run.path / 'hooked.py'}:Task", batch_size=20, log_every=1, **settings)


def whole_and_in_parts(tmp_path: Path, text: str, *limits: str, **settings: object) -> None:
    """Train in one go and in parts; every bit is the same."""
    whole, parts = new_run(tmp_path, "whole"), new_run(tmp_path, "parts")
    for each in (whole, parts):
        write(each, text, **settings)
    whole.here()
    for limit in (*limits, str(settings["max_steps"])):
        parts.here(SLURMGPU_MAX_STEPS=limit)
    alike(whole, parts)


def test_gradients_that_an_evaluation_or_a_callback_leaves_reach_no_step(tmp_path: Path) -> None:
    """No checkpoint holds them; the evaluation looks for the direction in which a sample is hardest."""
    plain, attacked = new_run(tmp_path, "plain"), new_run(tmp_path, "attacked")
    write(plain, "class Task(Line):\n    pass\n", max_steps=6, evaluate_steps=2)
    write(
        attacked,
        """
class Task(Line):
    def evaluate(self, model, batch):
        with torch.enable_grad():
            self.loss(model, batch).backward()
        return {"loss": (0.0, 1)}

    def on_step_end(self, model, step):
        model(torch.ones(1, 3)).sum().backward()
""",
        max_steps=6,
        evaluate_steps=2,
    )
    plain.here()
    attacked.here()
    assert plain.losses() == attacked.losses()


def test_gradients_of_what_no_optimizer_has_do_not_grow_from_step_to_step(tmp_path: Path) -> None:
    text = """
class Task(Line):
    def optimizer(self, model, cfg):
        return torch.optim.SGD(list(model.parameters())[:1], lr=0.1)
"""
    whole_and_in_parts(tmp_path, text, "3", max_steps=6, clip_norm=0.1)


@pytest.mark.parametrize("seeding", ["torch.manual_seed(epoch)", "pass"])
def test_an_order_a_task_draws_comes_again_and_moves_no_random_state(tmp_path: Path, seeding: str) -> None:
    """Also one that draws without a seed of its own."""
    text = f"""
class Task(Restless):
    def order(self, dataset, cfg, epoch):
        {seeding}
        return torch.randperm(len(dataset))
"""
    whole_and_in_parts(tmp_path, text, "3", "7", max_steps=12, checkpoint_steps=2)


def test_a_module_of_a_second_version_gets_its_own_weights_back(tmp_path: Path) -> None:
    """It takes a state without a version for one of its first, and turns it."""
    text = """
class Turned(nn.Linear):
    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version", 1) < 2:
            state[prefix + "weight"] = -state[prefix + "weight"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class Task(Line):
    def model(self, cfg):
        return Turned(3, 1)
"""
    whole_and_in_parts(tmp_path, text, "3", max_steps=6)
    begun = new_run(tmp_path, "begun")
    weights = max((tmp_path / "whole" / "checkpoints").glob("step-*")) / "model.pt"
    write(begun, text, max_steps=1, pretrained=str(weights), lr=1e-30)
    begun.here()
    assert torch.equal(begun.parameters()["weight"], torch.load(weights, weights_only=True)["weight"])


def test_an_edited_task_is_said_at_the_next_start(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
class Task(Line):
    def on_start(self, model, cfg):
        with open(__file__, "a") as file:
            print("# edited", file=file)
"""
    write(run, text, max_steps=4)
    run.here(SLURMGPU_MAX_STEPS="2")
    assert "changed since" not in capsys.readouterr().out
    run.here()
    assert "changed since step-2: the text of hooked.py" in capsys.readouterr().out


SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
ADAM = "torch.optim.Adam(model.parameters())"
TWO = "{'a': torch.optim.SGD(model.parameters(), lr=0.1)}"


def of(optimizer: str) -> str:
    name = "optimizers" if optimizer.startswith("{") else "optimizer"
    step = (
        "    def step(self, model, batches, update):\n        update('a', self.loss)\n"
        if name[-1] == "s"
        else ""
    )
    return f"class Task(Line):\n    def {name}(self, model, cfg):\n        return {optimizer}\n\n{step}"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (ADAM, SGD, "saved by an optimizer of another kind: it has .* and no .*momentum.*, which SGD needs"),
        (SGD, ADAM, "saved by an optimizer of another kind: it has .* and no .*betas.*, which Adam needs"),
        (SGD, TWO, "it has one optimizer, and the task has several: a"),
        (TWO, SGD, "it has optimizers named a, and the task has one"),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"schedule": "linear"}])
def test_a_checkpoint_of_another_optimizer_is_refused_in_words(
    run: RunFolder, before: str, after: str, said: str, settings: dict[str, str]
) -> None:
    write(run, of(before), max_steps=2, **settings)
    run.here()
    write(run, of(after), max_steps=4, **settings)
    with pytest.raises(TrainingError, match=said):
        run.here()


def test_the_options_that_torch_adds_while_it_loads_are_none_of_another_optimizer(tmp_path: Path) -> None:
    text = """
class Task(Line):
    def optimizer(self, model, cfg):
        return torch.optim.Adagrad(model.parameters())
"""
    whole_and_in_parts(tmp_path, text, "2", max_steps=3)
    optimizer = torch.optim.SparseAdam([torch.nn.Parameter(torch.ones(2))])
    load_state(optimizer, copy.deepcopy(optimizer.state_dict()))


def test_an_option_that_an_optimizer_has_got_since_has_its_default() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.defaults["new"] = optimizer.param_groups[0]["new"] = 3
    saved["param_groups"][0]["lr"] = 0.25
    load_state(optimizer, saved)
    assert [optimizer.param_groups[0][name] for name in ("new", "lr")] == [3, 0.25]


def test_a_new_schedule_begins_where_training_is(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, "class Task(Line):\n    pass\n", max_steps=4)
    run.here(SLURMGPU_MAX_STEPS="2")
    write(run, "class Task(Line):\n    pass\n", max_steps=4, schedule="linear")
    run.here()
    said = "the schedule is made anew for 4 steps, of which 2 are through: there was none before"
    assert said in capsys.readouterr().out
    rates = [line["values"]["learning_rate"] for line in run.metrics("train")]
    assert rates == pytest.approx([1e-3, 1e-3, 0.25e-3, 0])


def test_a_schedule_of_another_kind_is_refused_in_words(run: RunFolder) -> None:
    text = """
class Task(Line):
    def schedule(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.{}
"""
    write(run, text.format("ConstantLR(optimizer)"), max_steps=4)
    run.here(SLURMGPU_MAX_STEPS="2")
    write(run, text.format("LambdaLR(optimizer, lambda step: 1.0)"), max_steps=4)
    with pytest.raises(
        TrainingError, match="a LambdaLR, does not take the saved state, which seems to be of ano"
    ):
        run.here()


def test_random_generators_that_a_task_and_its_model_keep_go_on_where_they_were(tmp_path: Path) -> None:
    """Of the task, of a module deep in the model, in a global; an evaluation that draws from them moves none."""
    text = """
shared = random.Random(3)


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(4)

    def forward(self, x):
        return x + torch.rand(1, generator=self.generator)


class Task(Line):
    def __init__(self):
        super().__init__()
        self.own = [random.Random(5)]

    def model(self, cfg):
        return nn.Sequential(nn.Sequential(nn.Sequential(nn.Sequential(Noise()))), nn.Linear(3, 1))

    def loss(self, model, batch):
        return super().loss(model, batch) * self.own[0].uniform(0.5, 1.5) + shared.random()
"""
    whole_and_in_parts(tmp_path, text, "3", "4", max_steps=7, evaluate_steps=2)
    often = new_run(tmp_path, "often")
    write(often, text, max_steps=7, evaluate_steps=1)
    often.here()
    assert often.losses() == RunFolder(tmp_path / "whole").losses()


def test_generators_of_numpy_go_on_where_they_were() -> None:
    numpy = pytest.importorskip("numpy")
    kinds = (numpy.random.PCG64, numpy.random.MT19937, numpy.random.Philox, numpy.random.SFC64)
    kept = [*(numpy.random.Generator(kind(1)) for kind in kinds), numpy.random.RandomState(1), kinds[0](2)]

    def draw() -> list[float]:
        return [float(each.normal()) for each in kept[:-1]] + [
            float(numpy.random.Generator(kept[-1]).normal())
        ]

    draw()
    saved = Snapshot().take(states_of(kept), "generators")
    drawn = draw()
    assert put_back(kept, saved)
    assert draw() == drawn
    assert not put_back(kept[1:], saved)


def test_what_a_collate_draws_from_a_generator_of_the_task_is_drawn_again(tmp_path: Path) -> None:
    text = """
class Task(Line):
    def __init__(self):
        super().__init__()
        self.own = random.Random()

    def dataset(self, cfg, split):
        data = super().dataset(cfg, split)
        return [data[index] for index in range(len(data))]

    def collate(self, samples):
        return self.noisy(torch.utils.data.default_collate(samples))

    def noisy(self, batch):
        return [batch[0] + self.own.random(), *batch[1:]]
"""
    whole_and_in_parts(tmp_path, text, "3", max_steps=6)


def test_attributes_that_change_are_named_once(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
class Cooling(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.heat, self.fixed = 1.0, 0
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.heat *= 0.9
        self.count += 1
        self.table += 0
        self.fixed = 7  # from the first batch on
        return super().forward(x) * self.heat


class Task(Line):
    def model(self, cfg):
        self.seen = []
        return nn.Sequential(Cooling())

    def loss(self, model, batch):
        self.seen.append(1)
        return super().loss(model, batch)
"""
    write(run, text, max_steps=6, checkpoint_steps=2)
    run.here()
    out = capsys.readouterr().out
    said = [line for line in out.splitlines() if "no checkpoint has such attributes" in line]
    assert len(said) == 1
    named = said[0].partition(" changed while")[0].removeprefix("note: ").split(", ")
    assert sorted(named) == ["Task.calls", "Task.seen", "model.0.count", "model.0.heat"]


def test_another_runs_checkpoints_are_refused_in_a_run_that_has_its_own_and_taken_over_in_a_new_one(
    tmp_path: Path,
) -> None:
    runs = [new_run(tmp_path, name) for name in ("one", "other", "new")]
    for run in runs:
        write(run, "class Task(Line):\n    pass\n", max_steps=4)
    one, other, new = runs
    one.here(SLURMGPU_MAX_STEPS="2")
    other.here(SLURMGPU_MAX_STEPS="2")
    shutil.rmtree(one.path / "checkpoints")
    for taking in (one, new):
        shutil.copytree(other.path / "checkpoints", taking.path / "checkpoints")
    with pytest.raises(TrainingError, match="step-2 is of another run"):
        one.here()
    new.here()
    new.here()  # it has taken over the id, too
    (one.path / "state" / "starts.json").unlink()
    one.here()
    assert (one.path / "checkpoints" / "step-4").is_dir()
