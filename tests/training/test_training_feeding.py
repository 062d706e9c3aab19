"""Data with something of their own: after a stop, a training sees the samples and draws the numbers of one never stopped."""

from __future__ import annotations

import dataclasses
import random
import re
import types
from collections import Counter, UserDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slurmgpu.training import batches
from slurmgpu.training.errors import SettingsError, TrainingError
from slurmgpu.training.generators import digest, find

from .conftest import RunFolder, new_run, same

FEEDING = Path(__file__).with_name("feeding.py")
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "lr": 0.05, "log_every": 1}
META = torch.device("meta")


def write(run: RunFolder, task: str, config: dict[str, Any] | None = None, **settings: Any) -> None:
    config = config or {}
    run.write(f"{FEEDING}:{task}", **{**SETTINGS, **settings}, config={"traces": str(run.path), **config})


def start(run: RunFolder, processes: int = 1, **environment: str) -> None:
    """One process starts in this one, which is quicker."""
    if processes == 1:
        run.here(**environment)
        return
    ended = run.ranks(processes, **environment)
    assert ended.codes == [0] * processes, ended.out + ended.err


def traces(run: RunFolder) -> list[list[str]]:
    """What each rank was given, over all starts."""
    files = sorted(run.path.glob("trace-*"))
    return [
        [line for path in files if path.name.endswith(f"-{rank}") for line in path.read_text().splitlines()]
        for rank in range(2)
    ]


def assert_stops_change_nothing(tmp_path: Path, task: str, processes: int = 1, **settings: Any) -> None:
    """A training stopped after 3 and 6 steps against one never stopped: batches, losses and parameters."""
    whole, stopped = new_run(tmp_path, "whole"), new_run(tmp_path, "stopped")
    for each in (whole, stopped):
        write(each, task, **settings)
    start(whole, processes)
    for steps in ("3", "6"):
        start(stopped, processes, SLURMGPU_MAX_STEPS=steps)
    start(stopped, processes)
    assert [line["step"] for line in stopped.metrics("start")] == [0, 3, 6]
    assert traces(stopped) == traces(whole)
    assert stopped.losses() == whole.losses()
    assert same(stopped.parameters(), whole.parameters())


# Two processes are started anew for each stop, which takes its time.
two_processes = pytest.param(2, 2, marks=pytest.mark.long)


@pytest.mark.parametrize(("processes", "workers"), [(1, 0), (1, 2), two_processes])
def test_generators_that_a_data_set_keeps_survive_a_stop(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], processes: int, workers: int
) -> None:
    """A transform's default_rng, a closure's torch.Generator, a global random.Random, one made at the first sample."""
    assert_stops_change_nothing(tmp_path, "Generators", processes, workers=workers)
    assert "warning" not in capfd.readouterr().out


@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_cannot_be_read_twice_alike_are_noticed_once_a_start(
    run: RunFolder, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    write(run, "Unrepeatable", workers=workers, max_steps=3)
    start(run)
    assert capfd.readouterr().out.count("is not the same when it is read twice with the same seeds") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_task_makes_its_own_batches(tmp_path: Path, workers: int) -> None:
    assert_stops_change_nothing(tmp_path, "Collated", workers=workers)


@pytest.mark.parametrize("task", ["Weighted", "Bucketed", "Ordered"])
@pytest.mark.parametrize(("processes", "workers"), [(1, 0), (1, 2), two_processes])
@pytest.mark.chosen
def test_other_orders_survive_a_stop(tmp_path: Path, task: str, processes: int, workers: int) -> None:
    assert_stops_change_nothing(tmp_path, task, processes, workers=workers, epochs=4)


def streaming(stream: str, **settings: Any) -> dict[str, Any]:
    return {"task": "Streaming", "config": {"stream": stream}, "max_steps": 9, "batch_size": 12, **settings}


@pytest.mark.parametrize("stream", ["Stream", "Stateful", "InIterator", "WithEpochs"])
@pytest.mark.parametrize(
    ("processes", "workers", "accumulate"),
    [(1, 0, 1), (1, 2, 3), pytest.param(2, 2, 1, marks=pytest.mark.long)],
)
@pytest.mark.chosen
def test_a_stream_goes_on_behind_the_batch_last_trained_on(
    tmp_path: Path, stream: str, processes: int, workers: int, accumulate: int
) -> None:
    """Over more than two passes, with a state, with one of the iterator, and with none."""
    settings = streaming(stream, workers=workers, accumulate=accumulate)
    assert_stops_change_nothing(tmp_path, processes=processes, **settings)
    rows = [
        line.partition(" :")[0].split() for each in traces(RunFolder(tmp_path / "whole")) for line in each
    ]
    seen = Counter(index for row in rows for index in row)
    if stream != "WithEpochs":
        assert len(seen) == 45, "all of the stream has been seen"
    assert sum(seen.values()) == 9 * 12


def test_a_stream_with_a_state_keeps_the_order_that_its_pass_began_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Drawn from the global generators at the beginning of ``__iter__``, and not in its state."""
    assert_stops_change_nothing(tmp_path, **streaming("Shuffled"))
    assert "warning" not in capfd.readouterr().out


@pytest.mark.parametrize("stream", ["Behind", "ShuffledAndAugmented"])
def test_a_state_that_does_not_lead_to_the_sample_that_was_next_is_said(
    run: RunFolder, capfd: pytest.CaptureFixture[str], stream: str
) -> None:
    write(run, **streaming(stream))
    start(run, SLURMGPU_MAX_STEPS="3")
    start(run)
    said = capfd.readouterr().out
    assert said.count(f"warning: the stream {stream} does not go on with the sample that was next") == 1


def test_a_stream_without_state_says_what_it_costs(run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    write(run, **streaming("Stream"))
    start(run, SLURMGPU_MAX_STEPS="4")
    start(run)
    said = capfd.readouterr().out
    assert re.search(
        r"note: the stream is read again up to where it was: 48 samples on each rank, [\d.]+ s; with a state_dict",
        said,
    )
    assert "a stream, 9 steps" in said
    assert "epoch" not in said
    assert "48 samples of the stream are through" in said


def test_a_stream_keeps_its_workers_over_a_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, changed = new_run(tmp_path, "whole"), new_run(tmp_path, "changed")
    for run in (whole, changed):
        write(run, **streaming("Stateful", workers=2))
    start(whole)
    start(changed, SLURMGPU_MAX_STEPS="3")
    write(changed, **streaming("Stateful", workers=0))
    start(changed)
    assert "note: 2 workers, as in the checkpoint, and not 0" in capfd.readouterr().out
    assert traces(changed) == traces(whole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            streaming("Stream", max_steps=None),
            r"max_steps is null, and the training data are a stream \(Stream\)",
        ),
        (
            streaming("Uncopyable"),
            r"the state of the stream Uncopyable cannot be kept \(cannot pickle 'generator' object\): state_dict\(\) must",
        ),
        pytest.param(
            streaming("Unsavable"),
            r"the state of the stream\['path'\] is a PosixPath, which a checkpoint cannot hold",
            marks=pytest.mark.long,  # the loader waits for its workers
        ),
    ],
)
def test_a_stream_that_cannot_be_trained_on_is_refused_before_the_first_step(
    run: RunFolder, settings: dict[str, Any], message: str
) -> None:
    write(run, **settings)
    with pytest.raises((SettingsError, TrainingError), match=message):
        start(run)
    assert run.checkpoints() == []


def test_a_stream_without_a_sample_for_a_reader_is_refused(run: RunFolder) -> None:
    """In a process of its own: in this one, what the error holds on to would keep the workers waiting."""
    write(run, **streaming("Short", workers=2))
    ended = run.ranks()
    assert ended.codes == [1]
    assert "the stream Short has no sample for rank 0, worker 1: lower workers" in ended.err


def test_a_stream_whose_iterator_is_used_up_after_the_first_pass_is_refused(run: RunFolder) -> None:
    write(run, **streaming("UsedUp", epochs=2))
    with pytest.raises(
        TrainingError, match=r"UsedUp gave \d+ sample\(s\) to .* __iter__ has to return a new iterator"
    ):
        start(run)


@pytest.mark.long
def test_workers_end_with_a_rank_that_is_killed_whatever_they_have_still_to_send(run: RunFolder) -> None:
    """More than a pipe holds; and that they have ended is seen by their outputs, which are closed."""
    write(run, **{**streaming("InIterator", workers=2), "task": "Killed"})
    assert run.ranks().codes == [-9]


def test_readers_without_a_share_of_their_own_are_noticed(
    run: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    write(run, **streaming("Unshared", workers=2))
    start(run)
    said = capfd.readouterr().out
    assert "warning: rank 0, worker 0 and rank 0, worker 1 begin with the same samples" in said


def test_an_order_by_numbers_without_any_is_said(run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    write(run, **{**streaming("Stream", max_steps=1), "task": "StreamingByWeight"})
    start(run)
    said = "warning: nothing calls weights of the task: the training data are a stream (Stream), whose order is its own"
    assert said in capfd.readouterr().out


@pytest.mark.long
def test_a_stream_with_another_number_of_processes_begins_anew_and_says_so(run: RunFolder) -> None:
    write(run, **streaming("Stateful"))
    start(run, SLURMGPU_MAX_STEPS="3")
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    assert "the stream begins anew, because step-3 is of 1 process(es)" in ended.out
    assert "begin with the same samples" not in ended.out


def test_samples_that_make_no_batch_name_the_method_to_write(run: RunFolder) -> None:
    run.write("Ragged", **{**SETTINGS, "batch_size": 100}, config={"odd": "longer"})
    with pytest.raises(TrainingError, match=r"or write a method collate\(samples\) in the task"):
        run.here()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("empty", "got a list of 0"),
        ("beyond", "from 0 to 59, in the order of the epoch; epoch 0 has 0 to 60"),
        ("below", "epoch 0 has -1 to 0"),
        ("floats", "the numbers of samples, from 0 to 59"),
        ("nothing", "got None"),
        ("ragged", "order gave 11 samples for epoch 1 and 10 for epoch 0"),
    ],
)
def test_an_order_that_is_none_is_refused(run: RunFolder, order: str, message: str) -> None:
    write(run, "Wrong", {"order_is": order}, batch_size=10)
    with pytest.raises(TrainingError, match=message):
        start(run)


@pytest.mark.long
def test_ranks_that_disagree_on_the_order_are_told(run: RunFolder) -> None:
    write(run, "Disagreeing")
    ended = run.ranks(2)
    assert ended.codes == [1, 1]
    assert (
        "order does not come to the same order of samples on every rank (rank 1 has another one" in ended.err
    )


def test_weights_changed_since_the_save_are_noted(run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    write(run, "Changing", batch_size=10)
    (run.path / "metrics.jsonl").touch()
    start(run, SLURMGPU_MAX_STEPS="3")
    start(run)
    assert "changed since step-3: the order of samples (weights)" in capfd.readouterr().out


def draw(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator))
    return float(generator.random())


class Holder:
    """Holds something in an attribute."""

    kept: object = None

    def __init__(self, held: object) -> None:
        self.held = held


@pytest.mark.parametrize(
    "name", ["torch", "python", "default_rng", "PCG64DXSM", "MT19937", "SFC64", "RandomState"]
)
def test_a_generator_found_gives_the_same_for_the_same_seed(name: str) -> None:
    generator: Any
    if name == "torch":
        generator = torch.Generator()
    elif name == "python":
        generator = random.Random()
    else:
        numpy = pytest.importorskip("numpy")
        kind = getattr(numpy.random, name)
        generator = kind() if name in ("default_rng", "RandomState") else numpy.random.Generator(kind())
    (seed,) = find(Holder([Holder({"a": generator})]))
    drawn = []
    for number in (5, 6, 5):
        seed(number)
        drawn.append(draw(generator))
    assert drawn[0] == drawn[2] != drawn[1]


def test_generators_are_found_wherever_a_sample_may_draw_from_them() -> None:
    made = [random.Random() for _ in range(5)]
    module = types.ModuleType("module")
    vars(module)["generator"] = made[0]
    in_globals: dict[str, Any] = {"module": module, "direct": made[1]}
    exec(
        "def both(x):\n    return [module.generator.random() + direct.random() for _ in range(x)]", in_globals
    )

    class Own(Holder):
        kept = made[2]

        def method(self, default: Any = made[3]) -> float:
            return float(default.random() + made[4].random())

    seeds = find(Own(in_globals["both"]))
    for seed in seeds:
        seed(1)
    assert len(seeds) == 5
    assert len({each.random() for each in made}) == 5, "and each has its own seed"
    for seed in seeds:
        seed(1)
    first = [each.random() for each in made]
    for seed in find(Own(in_globals["both"])):
        seed(1)
    assert [each.random() for each in made] == first, "found in the same order"


def test_global_generators_are_nobodys_own() -> None:
    assert find(Holder([random.random, torch.default_generator, getattr(random, "_inst", None)])) == []
    numpy = pytest.importorskip("numpy")
    assert find(Holder([numpy.random.rand, numpy.random.mtrand])) == []


def test_a_digest_tells_samples_apart_and_nan_is_like_nan() -> None:
    nan = float("nan")
    assert digest({"a": [torch.tensor([1.0, nan]), nan]}) == digest({"a": [torch.tensor([1.0, nan]), nan]})
    for other in (
        torch.tensor([1.0, 2.0]),
        torch.tensor([1, 3]),
        torch.tensor([[1.0, 3.0]]),
        "a",
        None,
        (1.0, 3.0),
    ):
        assert digest(other) != digest(torch.tensor([1.0, 3.0]))


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A batch."""

    x: torch.Tensor
    name: str = "a"
    length: int = dataclasses.field(init=False, default=3)


class Graphs:
    """A batch as torch_geometric has it: it moves itself, and is not to be taken apart."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Graphs:
        return Graphs(self.x.to(device))


Named = namedtuple("Named", ["x", "y"])


@pytest.mark.parametrize(
    "batch",
    [
        Frozen(torch.ones(2)), Graphs(torch.ones(2)), Named(torch.ones(2), ["a"]), [{"x": (torch.ones(2), 3)}],
        UserDict(x=[torch.ones(2)]), [Frozen(torch.ones(2)), {"a": Graphs(torch.ones(2))}],
    ],
    ids=["dataclass", "own", "named", "containers", "mapping", "nested"],
)  # fmt: skip
def test_a_batch_of_any_kind_is_moved_and_keeps_its_kind(batch: Any) -> None:
    before = list(batches.tensors(batch))
    moved = batches.move(batch, META)
    assert type(moved) is type(batch)
    after = list(batches.tensors(moved))
    assert len(after) == len(before) > 0
    assert all(each.is_meta for each in after)
    assert not any(each.is_meta for each in batches.tensors(batch)), "and the one before stays"


def test_what_is_no_tensor_stays_as_it_is() -> None:
    moved = batches.move(Frozen(torch.ones(2), "b"), META)
    assert isinstance(moved, Frozen)
    assert (moved.name, moved.length) == ("b", 3)


def test_packed_sequences_move_as_torch_moves_them() -> None:
    """Their lengths stay on the CPU, as torch wants them."""
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    moved: Any = batches.move(packed, META)
    assert moved.data.is_meta
    assert not moved.batch_sizes.is_meta
