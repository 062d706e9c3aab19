"""micro_batch: the same batch in as few pieces as fit, whether their size is given or found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurmgpu.training import evaluation
from slurmgpu.training.data import eval_batches
from slurmgpu.training.order import shares
from slurmgpu.training.settings import Settings, divided, micro_batch

from .conftest import RunFolder, new_run, same

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 36, "lr": 0.05, "log_every": 1}


def trained(run: RunFolder, task: str = "Traced", **settings: Any) -> RunFolder:
    run.write(task, **SETTINGS | settings)
    run.here()
    return run


@pytest.fixture(autouse=True)
def in_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMGPU_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("batch", "world", "most", "expected"),
    [
        (100, 1, 40, (34, 3)), (96, 4, 8, (8, 3)), (96, 4, 7, (6, 4)), (96, 4, 1000, (24, 1)), (10, 4, 2, (2, 2)),
        (3, 4, 2, (1, 1)),
    ],
)  # fmt: skip
def test_a_batch_has_few_equal_parts(batch: int, world: int, most: int, expected: tuple[int, int]) -> None:
    settings = divided(Settings("task.py:T", batch_size=batch, micro_batch=most), world)
    assert (micro_batch(settings, world), settings.accumulate) == expected
    assert divided(settings, world) == settings, "what a manifest says is read back as it was"
    for rank in range(world):
        own = list(shares(0, batch, batch, expected[0], rank=rank, world_size=world))
        assert len(own) == expected[1]


def test_a_micro_batch_learns_the_bits_of_the_accumulation_that_it_comes_to(tmp_path: Path) -> None:
    one = trained(new_run(tmp_path, "one"), micro_batch=18)
    other = trained(new_run(tmp_path, "other"), accumulate=2)
    assert one.losses() == other.losses()
    assert same(one.parameters(), other.parameters())


def test_a_micro_batch_that_leaves_a_rest_learns_what_the_whole_batch_does(tmp_path: Path) -> None:
    """36 in parts of 7: six rounds of 6; of 8: five rounds, 8, 8, 8, 8 and 4."""
    whole = trained(new_run(tmp_path, "whole"))
    for most in (7, 8):
        other = trained(new_run(tmp_path, str(most)), micro_batch=most)
        assert other.losses() == pytest.approx(whole.losses(), rel=1e-5)
        assert other.metrics("start")[0]["values"]["micro_batch"] == {7: 6, 8: 8}[most]


def test_an_evaluation_has_its_own_micro_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(dataset: Any, size: int, *rest: Any, **named: Any) -> Any:
        asked.append(size)
        return eval_batches(dataset, size, *rest, **named)

    monkeypatch.setattr(evaluation, "eval_batches", noted)
    run = trained(new_run(tmp_path, "run"), eval_micro_batch=5)
    other = trained(new_run(tmp_path, "other"))
    assert asked == [5, 36]
    values, others = (each.metrics("eval")[-1]["values"]["loss"] for each in (run, other))
    assert values == pytest.approx(others, rel=1e-5)
