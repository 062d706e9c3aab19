"""Sharded models: what they learn is what one process learns, and a checkpoint of them fits any number of processes.

The tolerances are those of ``test_training_equality.py``: sums change their order, and nothing else.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.errors import SettingsError, TrainingError
from slurmgpu.training.export import export
from slurmgpu.training.fitting.memory import Budget
from slurmgpu.training.fitting.trial import Trial
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving import pieces
from slurmgpu.training.saving.pieces import Pieces, own_region
from slurmgpu.training.settings import Settings
from slurmgpu.training.sharding import fully, layers, pipeline
from slurmgpu.training.sharding.local import local
from slurmgpu.training.task import load as load_task
from slurmgpu.training.trainer import check_strategy
from slurmgpu.training.weights.reading import read_state

from . import small
from .conftest import TASKS as SMALL
from .conftest import RunFolder, has_fsdp2, new_run
from .test_training_equality import assert_close, assert_same

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 36, "lr": 0.05, "log_every": 1, "clip_norm": 0.5}
needs_fsdp2 = pytest.mark.skipif(not has_fsdp2(), reason="this torch has no FSDP2")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The tasks' file, which a training loads by its own name, may be loaded by the next test, too."""
    yield
    sys.modules.pop("small", None)


def note(shape: list[int], mesh: list[int], *placements: list[Any]) -> dict[str, Any]:
    count = torch.Size(mesh).numel()
    known = {"shape": shape, "dtype": "float32", "mesh": mesh, "ranks": list(range(count))}
    return {pieces._MARK: "w", **known, "placements": list(placements)}


def written(folder: Path, whole: torch.Tensor, about: dict[str, Any]) -> None:
    """The files of all ranks for one tensor."""
    for rank in about["ranks"]:
        region, writes = own_region(about, rank)
        piece = whole[pieces._slices(region)].clone()
        torch.save({"w": piece} if writes else {}, folder / f"shard-{rank}.pt")


CUTS = [
    note([7, 3], [4], ["shard", 0]),
    note([2, 3], [4], ["shard", 0]),
    note([7, 5], [2, 2], ["shard", 0], ["shard", 1]),
    note([7, 3], [2, 2], ["whole"], ["shard", 0]),
    note([5], [3], ["whole"]),
]


@pytest.mark.parametrize("about", CUTS, ids=lambda about: f"{about['shape']}-{about['mesh']}")
def test_a_tensor_comes_back_from_pieces_whole_or_in_part(tmp_path: Path, about: dict[str, Any]) -> None:
    whole = torch.randn(about["shape"])
    written(tmp_path, whole, about)
    found = Pieces(tmp_path)
    assert torch.equal(found.whole(about), whole)
    part = pieces.Region(tuple(1 for _ in whole.shape), tuple(size - 1 for size in whole.shape))
    assert torch.equal(found.part(about, part), whole[pieces._slices(part)])
    for reader in about["ranks"]:  # who needs no others' pieces reads no others' files
        region, _ = own_region(about, reader)
        needed = {rank for rank, there in pieces._written(about, region) if all(there.sizes)}
        for rank in set(about["ranks"]) - needed:
            (tmp_path / f"shard-{rank}.pt").rename(tmp_path / f"away-{rank}.pt")
        assert torch.equal(Pieces(tmp_path).part(about, region), whole[pieces._slices(region)])
        assert len(needed) < len(about["ranks"]) or not all(region.sizes)
        for path in tmp_path.glob("away-*.pt"):
            path.rename(tmp_path / path.name.replace("away", "shard"))


class Mesh:
    def __init__(self, ranks: torch.Tensor) -> None:
        self.mesh = ranks


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        (torch.arange(1024).reshape(128, 8), {"first": 0, "strides": [8, 1]}),
        (torch.arange(8).reshape(4, 2).T, {"first": 0, "strides": [1, 2]}),
        (torch.arange(12).reshape(2, 3, 2)[:, 1:2], {"first": 2, "strides": [6, 0, 1]}),
        (torch.tensor([0, 1, 3]), [0, 1, 3]),
        (torch.tensor([[0, 1], [1, 2]]), [0, 1, 1, 2]),
    ],
)
def test_a_mesh_is_named_by_its_strides_and_not_by_all_its_ranks(ranks: torch.Tensor, named: Any) -> None:
    found = pieces._ranks_of_mesh(Mesh(ranks))
    assert found == named
    about = {"ranks": found, "mesh": list(ranks.shape)}
    if isinstance(named, dict):
        for coordinate in (
            torch.cartesian_prod(*map(torch.arange, ranks.shape)).reshape(-1, ranks.dim()).tolist()
        ):
            rank = int(ranks[tuple(coordinate)])
            assert pieces._rank_at(about, coordinate) == rank
            assert pieces._coordinate_of(about, rank) == tuple(coordinate)
        assert pieces._coordinate_of(about, 5000) is None


def test_what_tensor_parallel_has_saved_is_refused_and_not_misread(tmp_path: Path) -> None:
    about = note([9, 5], [2, 2], ["shard again", 0], ["shard", 0])
    with pytest.raises(
        TrainingError, match=r"saved by processes of tensor_parallel.*the version that wrote it"
    ):
        Pieces(tmp_path).whole(about)


def test_an_export_of_pieces_is_one_safetensors_file_with_the_whole_tensors(tmp_path: Path) -> None:
    whole = torch.randn(7, 5)
    written(tmp_path, whole, CUTS[2])
    state = {"w": CUTS[2], "steps": torch.tensor(7), "half": torch.ones(3, dtype=torch.bfloat16)}
    torch.save(state, tmp_path / "model.pt")
    said = export(tmp_path, tmp_path / "one.safetensors")
    assert (said["tensors"], said["values"]) == (3, 39)
    found = read_state(tmp_path / "one.safetensors")
    assert torch.equal(found["w"], whole)
    assert torch.equal(found["half"], state["half"])
    assert found["steps"].shape == ()
    export(tmp_path, tmp_path / "one.pt")
    assert torch.equal(torch.load(tmp_path / "one.pt", weights_only=True)["w"], whole)
    assert torch.equal(read_state(tmp_path)["w"], whole), "pretrained takes a sharded checkpoint, too"


def test_a_state_that_is_no_tensors_by_name_is_not_put_into_a_safetensors_file(tmp_path: Path) -> None:
    torch.save({"optimizer": {"state": {}, "param_groups": []}}, tmp_path / "training.pt")
    with pytest.raises(TrainingError, match=r"'state', which is no tensor.*such as \.pt"):
        export(tmp_path, tmp_path / "one.safetensors", "optimizer")


def test_a_piece_that_is_gone_is_named(tmp_path: Path) -> None:
    written(tmp_path, torch.ones(7, 3), CUTS[0])
    (tmp_path / "shard-2.pt").unlink()
    with pytest.raises(TrainingError, match=r"shard-2\.pt is not visible from here"):
        Pieces(tmp_path).whole(CUTS[0])


def test_an_older_torch_is_told_which_one_fsdp2_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", None)
    with pytest.raises(SettingsError, match=r"strategy fsdp2 needs torch 2\.6 or newer, and here is"):
        check_strategy(Settings("task.py:T", strategy="fsdp2"), 2)
    check_strategy(Settings("task.py:T", strategy="fsdp2"), 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "single"}, "strategy is single, but world size is 4: use strategy ddp or auto"),
        ({"strategy": "model_parallel"}, "strategy is model_parallel, but world size is 4"),
        ({"strategy": "pipeline", "pipeline_stages": 3}, "pipeline_stages is 3, and the job has 4 processes"),
        ({"strategy": "ddp", "pipeline_stages": 2}, "pipeline_stages is 2, and strategy is ddp"),
    ],
)
def test_an_impossible_layout_is_refused_before_processes_meet(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check_strategy(Settings("task.py:T", **settings), 4)


def test_layers_are_laid_out_in_their_order_and_about_equally() -> None:
    assert layers._shared_out([10, 10, 10, 10], 2) == [0, 0, 1, 1]
    assert layers._shared_out([1, 99, 9], 2) == [0, 0, 1]
    assert layers._shared_out([5], 3) == [1]
    model = small.Split().model(None)
    laid = layers.laid_out(model, load_task(f"{SMALL}:Split"), [torch.device("cpu"), torch.device("meta")])
    assert [str(each.device) for each in laid.parameters()] == ["cpu"] * 6 + ["meta"] * 6


def test_layers_on_one_device_learn_the_same_to_the_bit(tmp_path: Path) -> None:
    laid, plain = new_run(tmp_path, "laid"), new_run(tmp_path, "plain")
    laid.write("Split", **SETTINGS, strategy="model_parallel")
    plain.write("Split", **SETTINGS)
    laid.here()
    plain.here()
    assert_same(laid, plain)


@needs_fsdp2
def test_a_try_of_one_process_has_as_much_of_a_model_as_one_of_many(tmp_path: Path) -> None:
    settings = Settings(f"{SMALL}:Split", strategy="fsdp2", batch_size=4)
    trial = Trial(settings, torch.device("cpu"), Budget("CPU", 1 << 40, 1 << 40), 4, tmp_path)
    try:
        assert trial.step(2, 1) > 0
        assert local(next(trial.training.model.parameters())).shape == (2, 3)
        states = trial.training.optimizer.state.values()  # type: ignore[union-attr]
        assert local(next(iter(states))["exp_avg"]).shape == (2, 3)
    finally:
        trial.session.close()
        torch.distributed.destroy_process_group()


@needs_fsdp2
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
def test_blocks_are_compiled_each_by_itself_and_nothing_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch.compile, whose code is then run as it is; the answers are the same to the bit."""
    graphs: list[Any] = []

    def traced(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: real(function, backend=traced))
    group = Group(Ranks(), torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        answers = []
        for compiled in (False, True):
            assert not graphs
            torch.manual_seed(0)
            model = small.Split().model(None)
            settings = Settings(f"{SMALL}:Split", strategy="fsdp2", compile=compiled)
            model = fully.fully_sharded(model, load_task(settings.task), settings, group)
            sys.modules.pop("small", None)
            answer = model(torch.ones(5, 3))
            answer.sum().backward()
            grads = [local(each.grad) for each in model.parameters() if each.grad is not None]
            answers.append([answer.detach(), *grads])
            assert [name for name in model.state_dict() if "_orig_mod" in name] == []
        assert all(map(torch.equal, *answers))
        assert len(answers[0]) == 13
        assert 1 <= len(graphs) <= 2, "the two blocks, and none of their gathering"
    finally:
        torch.distributed.destroy_process_group()


def assert_close_measures(one: RunFolder, other: RunFolder) -> None:
    """What evaluations have found, and what the task has measured in training."""
    for kind in ("eval", "train"):
        for mine, others in zip(one.metrics(kind), other.metrics(kind), strict=True):
            for name in mine["values"].keys() & {"loss", "sum", "total"}:
                assert mine["values"][name] == pytest.approx(others["values"][name], rel=1e-5), name


def test_micro_batches_go_back_as_soon_as_they_can_or_all_at_the_end() -> None:
    for number, ahead in enumerate((4, 3, 2, 1)):
        assert most_under_way(list(pipeline.turns("1f1b", number, 4, 8))) == ahead
        assert most_under_way(list(pipeline.turns("gpipe", number, 4, 8))) == 8
        assert most_under_way(list(pipeline.turns("1f1b", number, 4, 2))) == min(2, ahead)


def most_under_way(found: list[pipeline.Turn]) -> int:
    """Activations that wait for their backward pass at a time, at most."""
    waiting = [sum(1 if each.forward else -1 for each in found[:end]) for end in range(len(found) + 1)]
    assert waiting[-1] == 0
    return max(waiting)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_no_schedule_lets_processes_wait_for_each_other_for_ever_or_take_anothers(schedule: str) -> None:
    """Played through: a receive takes the oldest that was sent to it, whatever it is."""
    for count, rounds in itertools.product((2, 3, 4), range(1, 13)):
        left = [list(pipeline.turns(schedule, number, count, rounds)) for number in range(count)]
        assert all(len(set(each)) == len(each) == 2 * rounds for each in left)
        sent: dict[tuple[bool, int], list[int]] = defaultdict(list)  # to whom, in which direction
        while any(left):
            moved = False
            for number, own in enumerate(left):
                while own and taken(own[0], number, count, sent):
                    own.pop(0)
                    moved = True
            assert moved, (count, rounds)


def taken(turn: pipeline.Turn, number: int, count: int, sent: dict[tuple[bool, int], list[int]]) -> bool:
    """Take a turn of a stage, if the micro-batch that it needs has come."""
    if number != (0 if turn.forward else count - 1):
        come = sent[turn.forward, number]
        if not come:
            return False
        assert come.pop(0) == turn.micro
    after = number + (1 if turn.forward else -1)
    if 0 <= after < count:
        sent[turn.forward, after].append(turn.micro)
    return True


FSDP2: dict[str, Any] = {"strategy": "fsdp2", "ema": 0.9}
STAGES: dict[str, Any] = {"strategy": "pipeline", "config": {"dropout": 0.0}}
WAYS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "fsdp2 on 4": (4, "Traced", {**FSDP2, "accumulate": 3}),
    "4 stages": (4, "Split", {**STAGES, "accumulate": 6}),
    "2 copies of 2 stages": (4, "Stages", {**STAGES, "accumulate": 3, "pipeline_stages": 2}),
    "fsdp2 on 2": (2, "Weighted", {**FSDP2, "reshard_after_forward": False}),
    "fsdp2 on 2, compiled": (2, "Compiled", {**FSDP2, "compile": True}),
    "fsdp2 on 2, a tied weight": (2, "Tied", FSDP2),
    "2 stages": (2, "Stages", {**STAGES, "accumulate": 3, "pipeline_schedule": "gpipe"}),
}  # fmt: skip
"""Processes, task and settings."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunFolder]]:
    """All of these ways, by processes that start once; the fsdp2 of a torch that has none is left out."""
    folder = tmp_path_factory.mktemp("ways")
    with pytest.MonkeyPatch.context() as patched:
        found: dict[str, RunFolder] = {}
        for name, (_, task, settings) in WAYS.items():
            if settings["strategy"] != "fsdp2" or has_fsdp2():
                found[name] = new_run(folder, name)
                found[name].write(task, **{**SETTINGS, **settings})
        for count in (4, 2):
            first, *rest = (run for name, run in found.items() if WAYS[name][0] == count)
            ended = first.ranks(count, then=rest)
            assert set(ended.codes) == {0}, ended.err
        for name, (_, task, settings) in WAYS.items():
            kept = {key: settings[key] for key in ("config", "ema", "lr") if key in settings}
            one = f"{task}, {kept}"
            if name in found and one not in found:
                found[one] = new_run(folder, one)
                found[one].write(task, **{**SETTINGS, **kept})
                patched.setenv("SLURMGPU_RUN_DIR", str(found[one].path))
                found[one].here()
        yield found


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_processes_that_share_a_model_learn_what_one_learns(trained: dict[str, RunFolder], way: str) -> None:
    """Losses, evaluations and weights; the last step is shorter, and one of the losses is counted."""
    _, task, settings = WAYS[way]
    if way not in trained:
        pytest.skip("this torch has no FSDP2")
    kept = {key: settings[key] for key in ("config", "ema", "lr") if key in settings}
    shared, alone = trained[way], trained[f"{task}, {kept}"]
    assert_close(shared, alone)
    assert_close_measures(shared, alone)


@pytest.mark.long
@pytest.mark.chosen
def test_a_pipeline_goes_on_to_the_bit_and_in_one_process_within_rounding(tmp_path: Path) -> None:
    """Saved by 2 stages, with the state of AdamW; gone on with by 2 that draw, and by one process and 4 stages that do not."""
    settings = {**SETTINGS, "accumulate": 3, "strategy": "pipeline"}
    straight, halted, calm = (new_run(tmp_path, name) for name in ("straight", "halted", "calm"))
    for run, steps, dropout in ((straight, "99", 0.1), (halted, "3", 0.1), (calm, "3", 0.0)):
        run.write("Stages", **settings, config={"dropout": dropout})
        ended = run.ranks(2, SLURMGPU_MAX_STEPS=steps)
        assert set(ended.codes) == {0}, ended.err
    assert_same(going_on(tmp_path, halted, "same", 2), straight)
    expected = going_on(tmp_path, calm, "two", 2)
    assert_close(going_on(tmp_path, calm, "one", 1, strategy="single"), expected)
    assert_close(going_on(tmp_path, calm, "four", 4), expected)


def going_on(tmp_path: Path, run: RunFolder, name: str, processes: int, **settings: Any) -> RunFolder:
    """A copy of a run, gone on with by other processes."""
    shutil.copytree(run.path, tmp_path / name)
    copy = RunFolder(tmp_path / name)
    document = json.loads((copy.path / "train.json").read_text())
    (copy.path / "train.json").write_text(json.dumps({**document, **settings}))
    ended = copy.ranks(processes)
    assert set(ended.codes) == {0}, ended.err
    return copy


@pytest.mark.long
@needs_fsdp2
@pytest.mark.chosen
def test_a_sharded_checkpoint_goes_on_to_the_bit_or_elsewhere_within_rounding(tmp_path: Path) -> None:
    """Saved by 2; gone on with by 2, by 1 and by 3 that are sharded, and by 2 of ddp; and from ddp back."""
    settings = {
        **SETTINGS,
        "ema": 0.9,
        "schedule": "cosine",
        "batch_size": 18,
        "epochs": 3,
        "strategy": "fsdp2",
    }
    straight, halted = new_run(tmp_path, "straight"), new_run(tmp_path, "halted")
    for run, steps in ((straight, "99"), (halted, "6")):
        run.write("Layers", **settings)
        ended = run.ranks(2, SLURMGPU_MAX_STEPS=steps)
        assert set(ended.codes) == {0}, ended.err
    assert_same(going_on(tmp_path, halted, "same", 2), straight)
    # Of Line, which draws nothing.
    halted = new_run(tmp_path, "plain")
    halted.write("Line", **settings)
    halted.ranks(2, SLURMGPU_MAX_STEPS="6")
    expected = going_on(tmp_path, halted, "two", 2)
    assert_close(going_on(tmp_path, halted, "one", 1), expected)
    assert_close(going_on(tmp_path, halted, "three", 3), expected)
    assert_close(going_on(tmp_path, halted, "ddp", 2, strategy="ddp"), expected)
    halted = new_run(tmp_path, "unsharded")
    halted.write("Line", **{**settings, "strategy": "ddp"})
    halted.ranks(2, SLURMGPU_MAX_STEPS="6")
    assert_close(going_on(tmp_path, halted, "back", 2, strategy="fsdp2"), expected)


def test_a_task_that_still_has_parallelize_is_told_that_nothing_calls_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains all the same: a run of an earlier version goes on."""
    (tmp_path / "split_task.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SMALL.parent)!r})\nfrom small import Line\n\n"
        "class Task(Line):\n    def parallelize(self, model, mesh):\n        raise AssertionError\n"
    )
    run = new_run(tmp_path, "run")
    run.write(f"{tmp_path / 'split_task.py'}:Task", max_steps=1, tensor_parallel=1, stages_each=1)
    run.here()
    said = capsys.readouterr().out
    assert (
        "warning: nothing calls parallelize of the task: tensor_parallel has been removed; start torchtitan"
        in said
    )
