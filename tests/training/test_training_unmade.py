"""``meta_device``: a model that no process has whole begins with the values of one that is made in memory, to the bit."""

from __future__ import annotations

import contextlib
import copy
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
from torch.utils._pytree import tree_leaves

from slurmgpu.training.beside import Beside
from slurmgpu.training.errors import SettingsError, TrainingError
from slurmgpu.training.export import export
from slurmgpu.training.fitting.trial import pretend
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.run import check_strategy
from slurmgpu.training.settings import Settings
from slurmgpu.training.sharding import fully
from slurmgpu.training.sharding.deferred import LEAST, Deferred
from slurmgpu.training.sharding.local import local
from slurmgpu.training.sharding.unmade import Unmade
from slurmgpu.training.task import load as load_task
from slurmgpu.training.weights.loading import load_into
from slurmgpu.training.weights.reading import read_state

from .conftest import TASKS, RunFolder, has_fsdp2, new_run
from .test_training_equality import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
needs_fsdp2 = pytest.mark.skipif(not has_fsdp2(), reason="this torch has no FSDP2")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The tasks' file, which a training loads by its own name, may be loaded by the next test, too."""
    yield
    sys.modules.pop("small", None)


def rotary() -> nn.Module:
    """Buffers as of rotary embeddings, with complex values, and a tensor that is no buffer."""
    module = nn.Module()
    angles = torch.outer(torch.arange(256).float(), 10000 ** (-torch.arange(0, 64, 2).float() / 64))
    module.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)
    module.register_buffer("causal", torch.ones(64, 64).tril().view(1, 1, 64, 64))
    module.plain = torch.arange(6000).view(60, 100)  # type: ignore[assignment]
    return module


def drawn_again() -> nn.Module:
    """Values that are drawn, changed in part, copied, and drawn by a generator of the model's own."""
    layer, own = nn.Conv2d(16, 16, 5), torch.Generator().manual_seed(5)
    with torch.no_grad():
        layer.weight[3:5].uniform_()
        layer.weight *= torch.rand(16, 1, 1, 1)
        layer.weight[0].normal_(generator=own)
        scale = torch.ones(3)
        layer.weight.mul_(scale.mean())
        scale.zero_()
    if (layer.weight > 0).any():
        torch.rand(3)
    return nn.ModuleList([layer, copy.deepcopy(layer)])


def tied() -> nn.Module:
    embedding, head = nn.Embedding(100, 64, padding_idx=3), nn.Linear(64, 100, bias=False)
    head.weight = embedding.weight
    return nn.ModuleList([embedding, head]).to(torch.bfloat16)


def tried() -> nn.Module:
    """A model that is called once where it is made, as to learn a shape: it draws, and changes statistics."""
    first = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.RReLU(), nn.InstanceNorm2d(8, track_running_stats=True)
    )
    with torch.no_grad():
        first(torch.randn(2, 3, 16, 16))
        wide = nn.BatchNorm1d(1200)
        wide(torch.randn(4, 1200))
    return nn.ModuleList([first, wide, nn.Linear(60, 80)])


def all_at_once() -> nn.Module:
    """Large and small tensors, changed by one operation."""
    layer = nn.Linear(60, 80)
    with torch.no_grad():
        torch._foreach_mul_([layer.weight, layer.bias, torch.ones(2)], 2.0)
        torch._foreach_add_([layer.weight, layer.bias], 1.0)
    return layer


def drawn_by_init(draw: Callable[[torch.Tensor], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layer = nn.Linear(60, 80)
        draw(layer.weight)
        return layer

    return make


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(60, 80),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2),
    "lstm": lambda: nn.LSTM(64, 64),
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(60, 80)),
    "orthogonal": drawn_by_init(nn.init.orthogonal_),
    "truncated": drawn_by_init(nn.init.trunc_normal_),
    "eye": lambda: nn.ParameterList([nn.Parameter(torch.eye(50)), nn.Parameter(torch.randn(50, 50) / 7)]),
    "channels last": lambda: nn.Conv2d(16, 16, 5).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    "rotary": rotary,
    "drawn again": drawn_again,
    "tied": tied,
    "tried": tried,
    "all at once": all_at_once,
}


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    found = dict(model.named_parameters(remove_duplicate=False))
    found.update(model.named_buffers(remove_duplicate=False))
    return {**found, **({"plain": model.plain} if hasattr(model, "plain") else {})}  # type: ignore[dict-item]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("least", [40, 1000])
def test_values_that_come_later_are_those_of_a_plain_model_to_the_bit(name: str, least: int) -> None:
    torch.manual_seed(3)
    plain, then = tensors_of(MODELS[name]()), torch.rand(3)
    torch.manual_seed(3)
    with Deferred(least) as deferred:
        later = tensors_of(MODELS[name]())
    assert torch.equal(torch.rand(3), then), "what is drawn after the model is the same, too"
    assert plain.keys() == later.keys()
    for each in reversed(plain):  # in any order
        value = later[each]
        if isinstance(plain[each], nn.Parameter) and plain[each].numel() >= 1000:
            assert deferred.knows(value)
        if deferred.knows(value):
            value = deferred.value(deferred.place(value))
        assert torch.equal(value, plain[each])
        assert value.stride() == plain[each].stride()


class Counting(TorchDispatchMode):
    """The bytes of the tensors with values that live at a time, at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.live = self.peak = 0
        self._known: dict[int, object] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        for each in tree_leaves(answer):
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
@pytest.mark.parametrize("meta", [False, True])
def test_no_process_has_more_than_its_pieces_and_one_parameter_at_a_time(meta: bool) -> None:
    """Counted, not measured: eight layers over four processes, of which this is the first."""
    layer = 128 * 128 * 4
    settings = Settings(f"{TASKS}:Rows", strategy="fsdp2", meta_device=meta)
    group = Group(Ranks(), torch.device("cpu"))
    pretend(4)
    group.pieces = 4
    try:
        unmade = Unmade(group) if meta else None
        with Counting() as counted:
            torch.manual_seed(0)
            with unmade or contextlib.nullcontext():
                model: nn.Module = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(8)))
            if unmade is not None:
                unmade.settle(model)
            model = fully.fully_sharded(model, load_task(settings.task), settings, group, unmade)
        torch.manual_seed(0)
        for each in model.parameters():
            assert torch.equal(local(each), nn.Linear(128, 128, bias=False).weight[:32])
    finally:
        torch.distributed.destroy_process_group()
    if meta:
        assert counted.peak <= 8 * layer / 4 + 1.5 * layer
    else:
        assert counted.peak >= 8 * layer


def test_weights_that_are_put_into_it_take_the_place_of_what_would_be_drawn() -> None:
    state = {"weight": torch.randn(130, 130, dtype=torch.float64), "bias": torch.ones(130)}
    group = Group(Ranks(), torch.device("cpu"))
    unmade = Unmade(group)
    with unmade:
        model = nn.Linear(130, 130)
    with unmade:
        assert load_into(model, state).whole
        place = unmade._deferred.place(model.weight)
    assert [str(each.function) for each in unmade._deferred._needed({place.storage})] == [
        "aten.copy_.default"
    ]
    unmade.settle(model)
    unmade.fill_whole(model, [model])
    assert torch.equal(model.weight, state["weight"].float())
    assert torch.equal(model.bias, state["bias"])


def test_attributes_of_a_parameter_and_ties_stay() -> None:
    unmade = Unmade(Group(Ranks(), torch.device("cpu")))
    with unmade:
        model = nn.ModuleList([nn.Linear(130, 130, bias=False), nn.Linear(130, 130, bias=False)])
        model[0].weight.no_decay = True  # type: ignore[union-attr, assignment]
        model[1].weight = model[0].weight
        model[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    unmade.settle(model)
    assert model[0].weight.is_meta
    unmade.fill_whole(model, [model[0], model[1]])
    (only,) = model.parameters()
    assert model[0].weight is model[1].weight is only
    assert only.no_decay  # type: ignore[attr-defined]
    assert not only.requires_grad
    assert type(only) is nn.Parameter


def test_large_tensors_in_lists_that_a_module_keeps_have_values_and_one_hidden_in_a_function_is_refused() -> (
    None
):
    """Torch would leave out, without a word, what an operation that computes in place does with such a tensor."""
    unmade = Unmade(Group(Ranks(), torch.device("cpu")))
    with unmade:
        model = nn.Linear(130, 130)
        model.masks = [torch.ones(130, 130).tril(), {"all": (torch.arange(1 << 14), "said")}]  # type: ignore[assignment]
        kept, hidden = model.masks, torch.ones(130, 130)
    unmade.settle(model)
    assert model.masks is kept
    assert torch.equal(kept[0], torch.ones(130, 130).tril())  # type: ignore[index]
    assert torch.equal(kept[1]["all"][0], torch.arange(1 << 14))  # type: ignore[index, call-overload]
    with pytest.raises(
        TrainingError, match=r"shape \(130, 130\) that model\(cfg\) has made is used.*register_buffer"
    ):
        torch.zeros(130, 130).add_(hidden)


def test_a_stage_s_parameters_lie_in_memory_as_they_were_made() -> None:
    unmade = Unmade(Group(Ranks(), torch.device("cpu")))
    with unmade:
        model = nn.Conv2d(64, 64, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    unmade.settle(model)
    unmade.fill_whole(model, [model])
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()


class Unfilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.scale = nn.Parameter(torch.empty(LEAST))


def by_numpy() -> nn.Module:
    pytest.importorskip("numpy")
    torch.ones(200, 200).numpy()
    return nn.Linear(3, 3)


def changed_after() -> nn.Module:
    taken, layer = torch.tensor([0.0]).repeat(130 * 130).view(130, 130), nn.Linear(130, 130)
    with torch.no_grad():
        layer.weight.copy_(taken)
    taken.add_(1)
    return layer


def changed_unseen() -> nn.Module:
    """One array for several layers: torch does not count what others than it change."""
    memory, layers = bytearray(130 * 130 * 4), [nn.Linear(130, 130) for _ in range(2)]
    with torch.no_grad():
        for number, layer in enumerate(layers):
            memory[:] = bytes([number]) * len(memory)
            layer.weight.copy_(torch.frombuffer(memory, dtype=torch.float32).view(130, 130))
    return nn.ModuleList(layers)


def changed_as_data() -> nn.Module:
    taken, layer = torch.tensor([0.0]).repeat(130 * 130).view(130, 130), nn.Linear(130, 130)
    layer.weight.data.copy_(taken)
    taken.data[0, 0] = 1
    return layer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Unfilled, r"nothing gives inner\.scale its first values.*torch\.empty alone; fill it"),
        (
            by_numpy,
            r"looks at the values of a large tensor while it is made .*numpy.*or set meta_device: false",
        ),
        (changed_after, r"a tensor that aten::copy_ has taken was changed afterwards.*copy it before"),
        (changed_unseen, r"a tensor that aten::copy_ has taken was changed afterwards.*copy it before"),
        (changed_as_data, r"a tensor that aten::copy_ has taken was changed afterwards.*copy it before"),
    ],
)
def test_what_cannot_come_later_is_refused_and_not_left_to_chance(
    make: Callable[[], nn.Module], said: str
) -> None:
    unmade = Unmade(Group(Ranks(), torch.device("cpu")))

    def begin() -> None:
        with unmade:
            model = make()
        unmade.settle(model)
        unmade.fill_whole(model, list(model.modules()))

    with pytest.raises(TrainingError, match=said):
        begin()


@pytest.mark.parametrize("strategy", ["auto", "ddp", "single", "model_parallel"])
def test_a_strategy_by_which_each_process_has_the_whole_model_is_refused(strategy: str) -> None:
    with pytest.raises(
        SettingsError, match=f"meta_device is true, and strategy is {strategy}.*use strategy fsdp2"
    ):
        check_strategy(Settings("task.py:T", strategy=strategy, meta_device=True), 1)


def test_with_one_process_there_is_nothing_to_share_out_and_it_changes_nothing(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, name) for name in ("without", "with")]
    for run, meta in zip(runs, (False, True)):
        run.write("Wide", **SETTINGS, strategy="fsdp2", meta_device=meta, config={"tied": True})
        run.here()
    assert_same(*runs)


SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 36, "lr": 1e-3, "log_every": 1, "checkpoint_steps": 2}
WAYS: dict[str, dict[str, Any]] = {
    "fsdp2": {"strategy": "fsdp2", "config": {"tied": True}},
    "layers split over 2": {"strategy": "fsdp2", "tensor_parallel": 2, "precision": "bf16", "ema": 0.9},
    "stages": {"strategy": "pipeline", "accumulate": 3},
}


@pytest.mark.long
@needs_fsdp2
def test_two_processes_learn_from_it_to_the_bit_what_they_learn_from_a_model_made_in_memory(
    tmp_path: Path,
) -> None:
    """By each strategy; then they go on from their checkpoint as if nothing had been, and one process exports it."""
    runs: dict[tuple[str, bool], RunFolder] = {}
    for name, settings in WAYS.items():
        for meta in (False, True):
            runs[name, meta] = new_run(tmp_path, f"{name}, {meta}")
            runs[name, meta].write(
                "Wide", **{"config": {"tied": False}, **SETTINGS, **settings}, meta_device=meta
            )
    first, *rest = runs.values()
    ended = first.ranks(2, then=rest)
    assert set(ended.codes) == {0}, ended.err
    for name in WAYS:
        assert_same(runs[name, True], runs[name, False])

    export(newest(runs["fsdp2", True]), tmp_path / "one.safetensors")
    exported, trained = read_state(tmp_path / "one.safetensors"), runs["fsdp2", True].parameters()
    assert all(torch.equal(each, trained[name]) for name, each in exported.items())
    assert len(exported) >= 13

    begun = [new_run(tmp_path, name) for name in ("pretrained", "pretrained, made in memory")]
    for run, meta in zip(begun, (True, False)):
        about = {**SETTINGS, "meta_device": meta, "pretrained": str(tmp_path / "one.safetensors")}
        run.write("Wide", **about, strategy="fsdp2", config={"tied": True})
    goes_on = runs["fsdp2", True], runs["stages", True]
    straight = [(run.parameters(), run.losses()[-1]) for run in goes_on]
    for run in goes_on:
        shutil.rmtree(newest(run))
    ended = begun[0].ranks(2, then=[begun[1], *goes_on])
    assert set(ended.codes) == {0}, ended.err
    assert_same(*begun)
    for run, (weights, loss) in zip(goes_on, straight):
        found = run.parameters()
        assert all(torch.equal(found[name], each) for name, each in weights.items())
        assert run.losses()[-1] == loss
        assert [line["step"] for line in run.metrics("start")] == [0, 2]


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
    with Unmade(Group(Ranks(), torch.device("cpu"))):
        model = task.model()
    with pytest.raises(TrainingError, match=r"model\(cfg\) makes teacher beside the model.*__init__"):
        Beside(task, model, torch.device("cpu"))
