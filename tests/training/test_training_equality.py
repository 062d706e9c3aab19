"""One training, whatever computes it: processes, micro-batches and recomputation change rounding at most.

The tasks have no dropout and no statistics of batches, so a step's gradient is one sum over its samples. What
changes is the order of that sum, in single precision: a unit roundoff of 6e-8 for each of some dozen terms, in steps
that are linear in the gradient (SGD) or divided by its running size (AdamW), over nine steps. Losses within 1e-5 of
themselves and parameters within 5e-6 leave ten times of what was seen; a wrong weight of a micro-batch or a sample
that counts twice is beyond them by orders of magnitude. Where no sum changes its order, no bit may change.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from .conftest import RunFolder, new_run, same

pytestmark = pytest.mark.long

# 300 positions: eight whole steps, and one of 12 samples, which leave ranks and micro-batches short or empty.
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 36, "lr": 0.05, "log_every": 1, "clip_norm": 0.5}
WHOLE = 8

Train = Callable[..., RunFolder]


def trained_here(run: RunFolder) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch.dict(os.environ, SLURMGPU_RUN_DIR=str(run.path)):
            run.here()
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train a task in one way, once for all tests; one process trains in this one."""
    folder, done = tmp_path_factory.mktemp("equality"), dict[str, RunFolder]()

    def train(task: str, processes: int = 1, **settings: Any) -> RunFolder:
        name = "-".join([task, str(processes), *(f"{key}-{value}" for key, value in settings.items())])
        if name not in done:
            run = new_run(folder, name)
            run.write(task, **SETTINGS | settings)
            if processes > 1:
                ended = run.ranks(processes)
                assert set(ended.codes) == {0}, ended.err
            else:
                trained_here(run)
            done[name] = run
        return done[name]

    return train


def assert_close(one: RunFolder, other: RunFolder) -> None:
    assert one.losses() == pytest.approx(other.losses(), rel=1e-5)
    mine, others = one.parameters(), other.parameters()
    assert mine.keys() == others.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], others[name], rtol=0, atol=5e-6)


def assert_same(one: RunFolder, other: RunFolder) -> None:
    assert one.losses() == other.losses()
    assert same(one.parameters(), other.parameters())


@pytest.mark.parametrize("accumulate", [2, 4])
@pytest.mark.parametrize("task", ["Traced", "Weighted"])
def test_accumulation_changes_nothing_but_the_memory(train: Train, task: str, accumulate: int) -> None:
    assert_close(train(task, accumulate=accumulate), train(task))


@pytest.mark.parametrize(("task", "processes"), [("Traced", 2), ("Traced", 4), ("Weighted", 4)])
def test_processes_learn_what_one_learns(train: Train, task: str, processes: int) -> None:
    assert_close(train(task, processes), train(task))


def test_processes_that_accumulate_learn_what_one_learns(train: Train) -> None:
    assert_close(train("Traced", 2, accumulate=2), train("Traced"))


@pytest.mark.chosen
def test_two_processes_compute_the_bits_of_two_micro_batches(train: Train) -> None:
    """A sum of two terms has one order, and halving is exact; the short last step is weighed by thirds."""
    losses = train("Traced", 2).losses()
    assert losses[:WHOLE] == train("Traced", accumulate=2).losses()[:WHOLE]
    assert losses[:WHOLE] != train("Traced").losses()[:WHOLE], "else this would say nothing"


@pytest.mark.parametrize("settings", [{"strategy": "dp"}, {"activation_checkpointing": True}])
def test_cpu_dp_and_activation_checkpointing_change_no_bit(train: Train, settings: dict[str, Any]) -> None:
    """Neither changes a sum: on the CPU dp has one device, and a block that runs again does the same again."""
    assert_same(train("Traced", **settings), train("Traced"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_compiling_with_ddp_and_activation_checkpointing_changes_rounding_alone(train: Train) -> None:
    together = train("Traced", 2, max_steps=3, compile=True, activation_checkpointing=True)
    assert_close(together, train("Traced", max_steps=3))


def test_a_training_repeated_changes_no_bit(train: Train) -> None:
    assert_same(train("Traced", epochs=3), train("Traced"))


def samples(run: RunFolder, processes: int, known: set[Path]) -> list[int]:
    """The samples of the newest start in their global order; the files of earlier ones are ``known``."""
    traces = set(run.path.glob("trace-*")) - known
    assert len(traces) == processes
    known |= traces
    by_rank = sorted(traces, key=lambda path: int(path.name.rpartition("-")[2]))
    lines = [path.read_text().splitlines() for path in by_rank]
    return [int(index) for row in zip(*lines) for part in row for index in part.split()]


@pytest.mark.chosen
def test_a_resume_with_other_numbers_of_processes_keeps_the_order_of_samples(tmp_path: Path) -> None:
    """1, 2, 4 and 1 again: the samples of each step in the order of the straight run, each once an epoch."""
    settings = {**SETTINGS, "epochs": 2, "batch_size": 12}
    straight, changing = new_run(tmp_path, "straight"), new_run(tmp_path, "changing")
    for each in (straight, changing):
        each.write("Traced", **settings)
    trained_here(straight)
    seen: list[int] = []
    known: set[Path] = set()
    for processes, steps in ((1, "3"), (2, "7"), (4, "12"), (1, "99")):
        ended = changing.ranks(processes, SLURMGPU_MAX_STEPS=steps)
        assert set(ended.codes) == {0}, ended.err
        seen += samples(changing, processes, known)
    assert [line["step"] for line in changing.metrics("start")] == [0, 3, 7, 12]
    assert [line["values"]["world_size"] for line in changing.metrics("start")] == [1, 2, 4, 1]
    assert seen == samples(straight, 1, set())
    assert Counter(seen) == dict.fromkeys(range(100), 2)
    assert_close(changing, straight)
