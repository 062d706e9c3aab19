"""A kill costs no more steps than the interval: the training never runs further ahead of its newest checkpoint."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="Hypothesis is not here, where torch is alone")

from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.training import Run, files
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving.due import Bound
from slurmgpu.training.saving.saver import Saved, Saver, Saving
from slurmgpu.training.saving.snapshot import Snapshot
from tests import ready

from .conftest import RunFolder, Shared, clean_environment

STEPS = 300


def simulate(bound: Bound, epoch: int, lead: Callable[[], int]) -> tuple[list[int], list[int]]:
    """The steps saved, and how far ahead of the newest checkpoint each step ended; as the loop goes."""
    step = durable = 0
    saving: list[int] = []
    saved, ahead = [], []

    def collect() -> None:
        nonlocal durable
        if saving:
            durable = saving.pop()
            bound.ended(lead())

    while step < STEPS:
        if bound.must_wait(step):
            collect()
        if bound.due(step) or (step and step % epoch == 0):
            collect()
            if step != durable:
                saved.append(step)
                saving.append(step)
                bound.begun(step)
                if bound.must_wait(step):
                    collect()
        event = min(bound.next(step), step - step % epoch + epoch)
        assert event > step
        while step < event:
            step += 1
            ahead.append(step - durable)
    return saved, ahead


@given(
    steps=st.integers(1, 30),
    keep_every=st.none() | st.integers(1, 40),
    epoch=st.integers(1, 400),
    data=st.data(),
)
def test_no_step_ends_further_ahead_than_the_bound(
    steps: int, keep_every: int | None, epoch: int, data: st.DataObject
) -> None:
    """Whatever the leads, with checkpoints of epochs and of steps kept for good in between."""
    bound = Bound(steps, keep_every, 0)
    leads = st.integers(0, steps // 2)
    saved, ahead = simulate(bound, epoch, lambda: data.draw(leads))
    assert max(ahead) <= steps
    assert saved == sorted(set(saved))
    if keep_every:
        assert {each for each in range(1, STEPS) if each % keep_every == 0} <= set(saved)


@given(steps=st.integers(2, 40), lead=st.integers(1, 20))
def test_saves_come_a_lead_before_the_bound_and_no_oftener(steps: int, lead: int) -> None:
    lead = min(lead, steps // 2)
    saved, _ = simulate(Bound(steps, None, 0), 10**6, lambda: lead)
    assert saved[0] == steps - steps // 2, "nobody knows yet how long a save takes"
    apart = {later - earlier for earlier, later in itertools.pairwise(saved)}
    assert apart <= {steps - lead}


@pytest.mark.parametrize(
    ("steps", "seconds", "step_seconds", "lead"),
    [
        (100, 0.5, 1.0, 2), (100, 10.0, 1.0, 21), (100, 30.0, 1.0, 50), (100, 99.0, 1.0, 50),
        (100, 100.0, 1.0, 0), (100, 3.0, 0.0, 50), (2, 0.1, 1.0, 1), (1, 0.1, 1.0, 0),
    ],
)  # fmt: skip
def test_the_lead_is_twice_a_save(steps: int, seconds: float, step_seconds: float, lead: int) -> None:
    """Never more than half, at least a step, none where a save takes the whole interval and must be waited for."""
    assert Bound(steps, None, 0).lead(seconds, step_seconds) == lead


def newest(checkpoints: Path) -> int:
    found = [int(path.parent.name[5:]) for path in checkpoints.glob("step-*/manifest.json")]
    return max(found, default=0)


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_training_waits_for_a_slow_disk_rather_than_run_ahead(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interval: int
) -> None:
    """A file takes longer to write than an interval of steps."""
    real = files._sync

    def slow(file: Any) -> None:
        time.sleep(0.01)
        real(file)

    monkeypatch.setattr(files, "_sync", slow)
    monkeypatch.setenv("SLURMGPU_RUN_DIR", str(run.path))
    run.write("Ahead", epochs=6, batch_size=20, checkpoint_steps=interval)
    run.here()
    ahead = [int(found) for found in re.findall(r"^ahead (\d+)$", capsys.readouterr().out, re.MULTILINE)]
    assert len(ahead) == 30
    assert max(ahead) <= interval


def test_steps_that_are_kept_for_good_are_saved_exactly(run: RunFolder) -> None:
    run.write("Line", epochs=6, batch_size=20, checkpoint_steps=4, keep=1, keep_every=7, checkpoint_every=99)
    run.here()
    assert run.checkpoints() == ["step-14", "step-21", "step-28", "step-30", "step-7"]


OWN = """
import sys
from pathlib import Path
import torch
from torch import nn
from slurmgpu.training import Run

run = Run(save_every=int(sys.argv[1]))
model = nn.Linear(2, 1)
run.state(model=model)
for step in range(1, 31):
    found = Path(sys.argv[2], "checkpoints").glob("step-*/manifest.json")
    print(step - max([int(path.parent.name[5:]) for path in found], default=0))
    run.should_stop()
run.save()
"""


@pytest.mark.parametrize("interval", [1, 6])
def test_a_loop_of_ones_own_has_the_same_bound(tmp_path: Path, interval: int) -> None:
    (tmp_path / "own.py").write_text(OWN)
    command = [sys.executable, str(tmp_path / "own.py"), str(interval), str(tmp_path)]
    ended = ready.run(command, clean_environment(tmp_path))
    assert ended.returncode == 0, ended.stderr
    ahead = list(map(int, ended.stdout.split()))
    assert len(ahead) == 30
    assert max(ahead) <= interval
    assert newest(tmp_path / "checkpoints") == 30


def test_an_interval_of_no_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="save_every is 0; it must be a number of steps, at least 1"):
        Run(tmp_path, save_every=0)


def two_savers(folder: Path, *leads: Callable[[float], int]) -> list[Saver]:
    channel: Any = Shared()
    both = [Ranks(rank=rank, world_size=2) for rank in (0, 1)]
    leads = leads or (lambda _seconds: 0,) * 2
    return [
        Saver(folder, ranks, channel, None, Saving(keep=9), None, lead) for ranks, lead in zip(both, leads)
    ]


def save(savers: list[Saver], *steps: int) -> list[Saved | None]:
    for rank, (saver, step) in enumerate(zip(savers, steps)):
        saver.start(step, Snapshot(), {f"rank-{rank}.pt": step}, {})
    return [saver.collect() for saver in savers]


def test_all_ranks_learn_the_lead_that_rank_0_has_measured(tmp_path: Path) -> None:
    leads = iter([4, 7])
    savers = two_savers(tmp_path, lambda _seconds: next(leads), lambda _seconds: 99)
    for step, lead in ((10, 4), (16, 7)):
        assert [saved.lead for saved in save(savers, step, step) if saved] == [lead, lead]


def test_ranks_that_save_different_steps_get_no_checkpoint(tmp_path: Path) -> None:
    """As a loop of one's own may, by mistake: parts of two steps make no state."""
    savers = two_savers(tmp_path)
    errors = [saved.error for saved in save(savers, 10, 11) if saved]
    assert errors == ["the ranks saved different steps: 10, 11"] * 2
    assert newest(tmp_path) == 0
    assert [saved.error for saved in save(savers, 12, 12) if saved] == [None, None]
    assert newest(tmp_path) == 12
