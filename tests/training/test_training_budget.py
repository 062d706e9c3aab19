"""Checkpoints of epochs take at most a share of the time, and what is left out is said once, with the figures."""

from __future__ import annotations

import pytest

from slurmgpu.training.saving import due as budget
from slurmgpu.training.saving.due import Budget

from .conftest import RunFolder


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def trained(share: float | None, cost: float, epochs: int, epoch: float = 1.0) -> tuple[float, float, int]:
    """Seconds spent on saving, seconds in all and saves, over epochs that each end with one if it is affordable."""
    clock = Clock()
    purse, spent, saves = Budget(share, clock), 0.0, 0
    for _ in range(epochs):
        clock.now += epoch
        if purse.affords():
            clock.now += cost
            purse.spend(cost, 1)
            spent, saves = spent + cost, saves + 1
    return spent, clock.now - 100, saves


@pytest.mark.parametrize("cost", [0.02, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_saving_takes_at_most_its_share_of_the_time(share: float, cost: float) -> None:
    """But for the first second, and the first save, whose cost nobody knew."""
    spent, seconds, saves = trained(share, cost, epochs=2000)
    assert saves >= 2
    assert spent <= share * seconds + max(1.0, cost)
    assert saves == 2000 or spent >= 0.9 * share * seconds - cost, "no more is left out than has to be"


def test_a_save_whose_cost_was_tried_is_paid_for_before_it_begins() -> None:
    clock = Clock()
    purse = Budget(0.05, clock)
    purse.expect(3.0)
    clock.now += 39
    assert not purse.affords()
    clock.now += 2
    assert purse.affords()


def test_a_save_does_not_wait_for_the_one_before() -> None:
    clock = Clock()
    purse = Budget(0.05, clock)
    purse.spend(0.6, 1)
    clock.now += 1e6
    assert purse.affords()
    assert not purse.affords(writing=True)


class Dear(Budget):
    """No time passes, and each save stops the training for a minute."""

    def __init__(self, share: float | None) -> None:
        super().__init__(share, Clock())

    def spend(self, seconds: float, saves: int = 0) -> None:
        super().spend(60.0 * saves, saves)

    def expect(self, seconds: float) -> None:
        super().expect(60.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"checkpoint_share": 0.05}, ["step-20"]),
        ({"checkpoint_share": 0.05, "keep_every": 10}, ["step-10", "step-20"]),
        ({"checkpoint_share": 0.05, "checkpoint_steps": 8}, ["step-12", "step-16", "step-20", "step-4", "step-8"]),
        ({"checkpoint_share": None}, ["step-10", "step-15", "step-20", "step-5"]),
    ],
)  # fmt: skip
def test_a_training_leaves_out_what_costs_too_much_and_nothing_else(
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, object],
    expected: list[str],
) -> None:
    monkeypatch.setattr("slurmgpu.training.session.Budget", Dear)
    monkeypatch.setattr("slurmgpu.training.saving.due.Bound.lead", lambda *_: 4)
    run.write(epochs=4, batch_size=20, keep=9, **settings)
    run.here()
    assert run.checkpoints() == expected
    said = capsys.readouterr().out
    assert said.count("note: the checkpoint of this epoch is left out") == (len(expected) < 3)
    assert said.count("is kept to all the same") == ("checkpoint_steps" in settings)
    assert budget._FREE > 0


@pytest.mark.long
def test_ranks_leave_out_the_same(run: RunFolder) -> None:
    """Rank 0's clock decides for all."""
    run.write(strategy="ddp", epochs=6, batch_size=20, checkpoint_share=0.001)
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    assert run.checkpoints()[0].startswith("step-")
