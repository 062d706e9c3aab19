"""``meta_device``: a model is made without memory, and each process fills what it keeps of it."""

from __future__ import annotations

import json
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from slurmgpu.training.aux_modules import AuxModules
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.export import export
from slurmgpu.training.fitting.trial import pretend
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.settings import Config, Settings
from slurmgpu.training.sharding import fully
from slurmgpu.training.sharding.local import local
from slurmgpu.training.sharding.meta_init import MetaInit
from slurmgpu.training.task import Task
from slurmgpu.training.task import load as load_task

from .conftest import TASKS, RunFolder, has_fsdp2, new_run, same
from .test_training_equality import assert_same

needs_fsdp2 = pytest.mark.skipif(not has_fsdp2(), reason="this torch has no FSDP2")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The tasks' file, which a training loads by its own name, may be loaded by the next test, too."""
    yield
    sys.modules.pop("small", None)


class Plain:
    """A task without init_weights."""

    def model(self, cfg: Any) -> None: ...
    def dataset(self, cfg: Any, split: str) -> None: ...
    def loss(self, model: Any, batch: Any) -> None: ...


def filled(make: Callable[[], nn.Module], kind: type = Plain, seed: int = 0) -> nn.Module:
    """A model made on the meta device and filled, all by this process."""
    settings = Settings("task.py:T", strategy="fsdp2", meta_device=True, seed=seed)
    meta = MetaInit(Task(kind, Path("task.py")), settings, Group(Ranks(), torch.device("cpu")))
    with meta.making():
        model = make()
    meta.fill(model, model.modules())
    meta.require_values(())
    return model


def tied() -> nn.Module:
    layers = nn.ModuleList([nn.Linear(9, 9, bias=False), nn.Linear(9, 9, bias=False)])
    layers[1].weight = layers[0].weight
    layers[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    layers[0].weight.no_decay = True  # type: ignore[union-attr, assignment]
    return layers


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(
        nn.Linear(60, 80), nn.LayerNorm(80), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    ),
    "lstm": lambda: nn.LSTM(8, 8),
    "embedding": lambda: nn.Embedding(10, 4, padding_idx=3),
    "tied": tied,
}


@pytest.mark.parametrize("name", MODELS)
def test_modules_begin_with_values_of_their_own_that_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(5)
    first, again, other = (filled(MODELS[name], seed=seed) for seed in (1, 1, 2))
    tensors = list(first.state_dict().values())
    assert all(torch.equal(*pair) for pair in zip(tensors, again.state_dict().values()))
    assert not all(torch.equal(*pair) for pair in zip(tensors, other.state_dict().values()))
    assert not any(each.is_meta or each.isnan().any() for each in tensors)


def test_what_a_layer_does_to_a_part_of_its_weight_and_what_a_parameter_has_stay() -> None:
    assert not filled(MODELS["embedding"]).weight[3].any()  # type: ignore[index, union-attr]
    layers = filled(tied)
    (only,) = layers.parameters()
    assert layers[0].weight is layers[1].weight is only  # type: ignore[index]
    assert only.no_decay  # type: ignore[attr-defined]
    assert not only.requires_grad
    lstm = filled(MODELS["lstm"])
    assert torch.isfinite(lstm(torch.ones(2, 8))[0]).all()


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.arange(6.0).cos(), persistent=False)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))


class Masked(nn.Linear):
    """Its reset_parameters is that of Linear, and fills no mask."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())


class Hidden(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.masks = [torch.ones(4, 4).tril()]


class Outer(nn.Module):
    """It begins its parts anew, which come later."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.inner.weight)


def shared() -> nn.Module:
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9)
    head.weight = embedding.weight
    return nn.Sequential(embedding, head)


def looks() -> nn.Module:
    return nn.Dropout(torch.linspace(0, 1, 3)[1].item())


class Leaves(Plain):
    """Its init_weights leaves something out."""

    def init_weights(self, model: nn.Module) -> None:
        nn.init.zeros_(model[0].weight)  # type: ignore[index, arg-type]


REFUSED: list[tuple[Callable[[], nn.Module], type, str]] = [
    (Rotary, Plain, r"0\.turns \(0 \(a Rotary\) has no reset_parameters\): define init_w"),
    (Scaled, Plain, r"0\.scale \(0 \(a Scaled\) has no reset_parameters\)"),
    (Masked, Plain, r"0\.mask \(reset_parameters of 0 \(a Masked\) does not fill it\)"),
    (Hidden, Plain, r"0\.masks \(it is neither a parameter nor a buffer"),
    (Outer, Plain, r"0\.inner\.weight \(reset_parameters of 0 \(a Outer\) may change"),
    (shared, Plain, r"0\.1\.weight \(Embedding and Linear share it, and give it different values\)"),
    (looks, Plain, r"model\(cfg\) looks at the values of a tensor .*set meta_device: false"),
    (lambda: nn.Linear(3, 3), Leaves, r"0\.bias \(init_weights\(model\) of the task does not fill"),
]


@pytest.mark.parametrize(("make", "kind", "said"), REFUSED)
def test_what_has_no_first_values_is_refused_by_its_name_with_the_way_out(
    make: Callable[[], nn.Module], kind: type, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        filled(lambda: nn.Sequential(make()), kind)


def test_the_shipped_gpt2_begins_as_its_published_network_does() -> None:
    task = load_task("slurmgpu:gpt2")
    settings = Settings("slurmgpu:gpt2", strategy="fsdp2", meta_device=True, config={"size": "tiny"})
    meta = MetaInit(task, settings, Group(Ranks(), torch.device("cpu")))
    with meta.making():
        model: Any = task.model(Config(settings))
    meta.fill(model, model.modules())
    meta.require_values(())
    assert model.scores.weight is model.tokens.weight
    assert float(model.tokens.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert float(model.blocks[1].narrow.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    assert torch.equal(model.norm.weight, torch.ones(64))


class Counting(TorchDispatchMode):
    """The bytes of the tensors with values that live at a time, at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.live = self.peak = 0
        self._known: dict[int, object] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        for each in tree_flatten(answer)[0]:
            if not isinstance(each, torch.Tensor) or each.device.type == "meta":
                continue
            storage = local(each).untyped_storage()
            if storage.device.type != "meta" and storage._cdata not in self._known:
                self._known[storage._cdata] = weakref.finalize(
                    storage, self._gone, storage._cdata, storage.nbytes()
                )
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
        return answer

    def _gone(self, key: int, size: int) -> None:
        del self._known[key]
        self.live -= size


@needs_fsdp2
@pytest.mark.parametrize("meta_device", [False, True])
def test_no_process_has_more_than_its_pieces_and_a_block_at_a_time(meta_device: bool) -> None:
    """Counted, not measured: eight layers over four processes, of which this is the first."""
    layer = 128 * 128 * 4
    settings = Settings(f"{TASKS}:Rows", strategy="fsdp2", meta_device=meta_device)
    task, group = load_task(settings.task), Group(Ranks(), torch.device("cpu"))
    pretend(4)
    group.pieces = 4

    def make() -> nn.Module:
        return nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(8)))

    try:
        with Counting() as counted:
            if meta_device:
                meta = MetaInit(task, settings, group)
                with meta.making():
                    model = make()
                model = fully.fully_sharded(model, task, settings, group, meta)
                meta.require_values(())
            else:
                model = fully.fully_sharded(make(), task, settings, group)
        whole = filled(make)
        if meta_device:
            for each, mine in zip(model.parameters(), whole.parameters()):
                assert torch.equal(local(each), mine[:32]), "the same values as over any number of processes"
    finally:
        torch.distributed.destroy_process_group()
    if meta_device:
        # With a block comes what tells whether it is filled.
        assert counted.peak <= 8 * layer / 4 + 1.5 * layer
    else:
        assert counted.peak >= 8 * layer


class Anew(Plain):
    """Its init_weights makes new tensors in place of those that are there."""

    def init_weights(self, model: nn.Module) -> None:
        for layer in model:  # type: ignore[attr-defined]
            layer.weight = nn.Parameter(torch.full((8, 8), 3.0))
            layer.register_buffer("mask", torch.ones(8))


@needs_fsdp2
@pytest.mark.parametrize(("kind", "refused"), [(Plain, True), (Anew, False)])
def test_a_block_is_cut_as_the_task_leaves_it_and_not_as_a_container_would(kind: type, refused: bool) -> None:
    class Layers(nn.Sequential):
        def reset_parameters(self) -> None: ...

    settings = Settings("task.py:T", strategy="fsdp2", meta_device=True)
    task, group = Task(kind, Path("task.py")), Group(Ranks(), torch.device("cpu"))
    pretend(2)
    group.pieces = 2
    try:
        meta = MetaInit(task, settings, group)
        with meta.making():
            model: nn.Module = Layers(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
            model[0].register_buffer("mask", torch.ones(8))  # type: ignore[index, union-attr, operator]
        model = fully.fully_sharded(model, task, settings, group, meta)
        if refused:
            with pytest.raises(
                TrainingError, match=r"0\.weight \(reset_parameters of the model \(a \w*Layers\)"
            ):
                meta.require_values(())
            return
        meta.require_values(())
        assert [local(each).tolist() for each in model.parameters()] == [[[3.0] * 8] * 4] * 2
        assert [each.tolist() for each in model.buffers()] == [[1.0] * 8] * 2
    finally:
        torch.distributed.destroy_process_group()


SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 36, "lr": 1e-3, "log_every": 1, "checkpoint_steps": 2}


def test_with_one_process_there_is_nothing_to_share_out_and_it_changes_nothing(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, name) for name in ("without", "with")]
    for run, meta_device in zip(runs, (False, True)):
        run.write("Begun", **SETTINGS, strategy="fsdp2", meta_device=meta_device, config={"tied": True})
        run.here()
    assert_same(*runs)


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fsdp2": ("Begun", {"strategy": "fsdp2", "config": {"tied": True}, "precision": "bf16", "ema": 0.9}),
    "fsdp2 by modules": ("Split", {"strategy": "fsdp2"}),
    "gpt2": ("slurmgpu:gpt2", {"strategy": "fsdp2", "config": {"size": "tiny", "context": 8, "samples": 72}}),
    "stages": ("Begun", {"strategy": "pipeline", "accumulate": 3, "config": {"tied": False}}),
    "stages by modules": ("Split", {"strategy": "pipeline", "accumulate": 3}),
}


@pytest.mark.long
@needs_fsdp2
@pytest.mark.chosen
def test_two_processes_begin_alike_each_time_and_go_on_from_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    runs: dict[tuple[str, str], RunFolder] = {}
    for name, (task, settings) in WAYS.items():
        for start in ("one", "other"):
            runs[name, start] = new_run(tmp_path, f"{name}, {start}")
            runs[name, start].write(task, **SETTINGS, **settings, meta_device=True)
    first, *rest = runs.values()
    ended = first.ranks(2, then=rest)
    assert set(ended.codes) == {0}, ended.err
    for name in WAYS:
        assert_same(runs[name, "one"], runs[name, "other"])
        assert all(torch.isfinite(each).all() for each in runs[name, "one"].parameters().values())
    for name in WAYS:
        shutil.rmtree(newest(runs[name, "other"]))
    again = [runs[name, "other"] for name in WAYS]
    ended = again[0].ranks(2, then=again[1:])
    assert set(ended.codes) == {0}, ended.err
    for name in WAYS:
        assert same(runs[name, "one"].parameters(), runs[name, "other"].parameters())
        assert len({line["step"] for line in runs[name, "other"].metrics("start")}) == 2


@pytest.mark.long
@needs_fsdp2
def test_weights_of_a_file_take_the_place_of_first_values(tmp_path: Path) -> None:
    """As if the model had been made in memory; what the file does not have keeps the first values of the task."""
    origin = new_run(tmp_path, "origin")
    origin.write("Begun", **SETTINGS, seed=7, config={"tied": False})
    origin.here()
    export(newest(origin), tmp_path / "all.safetensors")
    state = {name: each for name, each in origin.parameters().items() if not name.startswith("2.")}
    torch.save({**state, "0.0.weight": torch.ones(5, 3)}, tmp_path / "some.pt")
    runs = {}
    for strategy in ("fsdp2", "pipeline"):
        for meta_device in (True, False):
            runs[strategy, meta_device] = run = new_run(tmp_path, f"{strategy}, {meta_device}")
            about = {**SETTINGS, "strategy": strategy, "config": {"tied": False}, "meta_device": meta_device}
            run.write("Begun", **about, pretrained=str(tmp_path / "all.safetensors"))
    partly = new_run(tmp_path, "partly")
    about = {"pretrained": str(tmp_path / "some.pt"), "pretrained_strict": False}
    partly.write("Begun", **SETTINGS, **about, strategy="fsdp2", meta_device=True, config={"tied": False})
    first, *rest = (*runs.values(), partly)
    ended = first.ranks(2, then=rest)
    assert set(ended.codes) == {0}, ended.err
    for strategy in ("fsdp2", "pipeline"):
        assert_same(runs[strategy, True], runs[strategy, False])
    assert "1 of another shape or kind, left as they were: 0.0.weight (float32 [5, 3]" in ended.out
    assert all(torch.isfinite(each).all() for each in partly.parameters().values())


@pytest.mark.long
@needs_fsdp2
@pytest.mark.parametrize("strategy", ["fsdp2", "pipeline"])
def test_all_processes_say_what_one_of_them_cannot_fill(tmp_path: Path, strategy: str) -> None:
    """Not even a checkpoint has this buffer: a start that goes on is refused, too."""
    run = new_run(tmp_path, strategy)
    run.write("Begun", **SETTINGS, strategy=strategy, meta_device=True, config={"tied": False})
    assert set(run.ranks(2, SLURMGPU_MAX_STEPS="2").codes) == {0}
    document = json.loads((run.path / "train.json").read_text())
    (run.path / "train.json").write_text(json.dumps({**document, "task": f"{TASKS}:HalfBegun"}))
    for folder in ("checkpoints", "gone"):
        ended = run.ranks(2)
        assert 0 not in ended.codes
        assert "nothing gives first values to 1.2.table (init_weights(model) of the task does" in ended.err
        if folder == "checkpoints":
            assert "1.2.mask" not in ended.err, "a checkpoint has it"
            shutil.rmtree(run.path / "checkpoints")
    assert "1.2.mask" in ended.err


def newest(run: RunFolder) -> Path:
    return max(
        (run.path / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-"))
    )


class Teaching:
    """A task whose model(cfg) makes a teacher, too."""

    def model(self) -> nn.Module:
        self.teacher = nn.Linear(130, 130)
        return nn.Linear(3, 3)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return self.teacher(model(batch))


def test_what_the_task_makes_for_itself_with_the_model_is_refused_by_name() -> None:
    task = Teaching()
    with torch.device("meta"):
        model = task.model()
    with pytest.raises(TrainingError, match=r"model\(cfg\) makes teacher beside the model.*__init__"):
        AuxModules(task, model, torch.device("cpu"))
