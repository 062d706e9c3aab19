"""TensorBoard and Weights & Biases: the same numbers as metrics.jsonl, and never the training's undoing."""

from __future__ import annotations

import json
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from slurmgpu.training.errors import SettingsError
from slurmgpu.training.watching import metrics

from .conftest import RunFolder


class Wandb(ModuleType):
    """A stand-in for the package, which keeps what it is given."""

    def __init__(self, *, broken: str = "") -> None:
        super().__init__("wandb")
        self.broken = broken
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []
        self.axis: list[str] = []
        self.finished = 0

    def init(self, **options: Any) -> Wandb:
        if self.broken == "init":
            raise RuntimeError("no API key configured\nand more")
        self.started.append(options)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axis.append(f"{name}:{step_metric}")

    def log(self, values: dict[str, float]) -> None:
        if self.broken == "log" and len(self.logged) == 3:
            raise OSError("the network is gone")
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def numbers(run: RunFolder) -> list[dict[str, float]]:
    """What of metrics.jsonl is a number, as a tracker names it."""
    found = []
    for line in map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines()):
        values = {
            f"{line['kind']}/{name}": value
            for name, value in line["values"].items()
            if type(value) in (int, float)
        }
        found.append({"step": line["step"], **values})
    return found


def test_weights_and_biases_gets_all_numbers_and_one_run_for_all_starts(run: RunFolder, wandb: Wandb) -> None:
    run.write(epochs=2, batch_size=20, log_every=2, track=["wandb"])
    run.here(SLURMGPU_MAX_STEPS="4")
    run.here()
    assert [{k: v for k, v in each.items() if k != "time"} for each in wandb.logged] == numbers(run)
    first, second = wandb.started
    assert first["id"] == second["id"]
    assert {each["resume"] for each in wandb.started} == {"allow"}
    assert (first["dir"], first["settings"]["run_name"]) == (str(run.path), "run")
    assert first["config"]["slurmgpu"]["batch_size"] == 20
    assert wandb.axis == ["*:step", "*:step"]
    assert wandb.finished == 2


def test_a_training_that_starts_anew_is_a_run_of_its_own(run: RunFolder, wandb: Wandb) -> None:
    run.write(batch_size=50, track=["wandb"])
    run.here()
    run.write(batch_size=50, track=["wandb"], resume=False)
    run.here()
    assert len({each["id"] for each in wandb.started}) == 2


@pytest.mark.parametrize("installed", [None, ModuleType("wandb")], ids=["nothing", "a folder of runs"])
def test_a_tracker_that_is_not_installed_is_an_error_before_anything_begins(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, installed: ModuleType | None
) -> None:
    """A folder ``wandb/`` that earlier runs left in the work folder imports as an empty package."""
    monkeypatch.setitem(sys.modules, "wandb", installed)
    run.write(batch_size=20, track=["wandb"])
    with pytest.raises(
        SettingsError, match=r"track names wandb, which is not installed .*: pip install wandb, or"
    ):
        run.here()
    assert sorted(path.name for path in run.path.iterdir()) == ["train.json"]


@pytest.mark.parametrize(
    ("broken", "why", "logged"), [("init", "no API key configured", 0), ("log", "the network is gone", 3)]
)
def test_a_tracker_that_fails_costs_a_warning_and_not_the_training(
    run: RunFolder, wandb: Wandb, capsys: pytest.CaptureFixture[str], broken: str, why: str, logged: int
) -> None:
    wandb.broken = broken
    run.write(epochs=2, batch_size=20, log_every=1, track=["wandb"])
    run.here()
    out = capsys.readouterr().out
    assert out.count(f"warning: wandb fails ({why}); the training goes on without it") == 1
    assert out.splitlines()[-1].startswith("done: 2 epochs, 10 steps")
    assert (len(wandb.logged), len(run.metrics("train"))) == (logged, 10)


def test_a_tracker_that_hangs_at_the_end_is_not_waited_for_long(
    run: RunFolder, wandb: Wandb, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    going = threading.Event()
    monkeypatch.setattr(metrics, "_PATIENCE", 0.2)
    monkeypatch.setattr(wandb, "finish", lambda: going.wait(60))
    run.write(batch_size=20, track=["wandb"])
    run.here()
    going.set()
    assert "warning: wandb takes more than 0.2 s at the end" in capsys.readouterr().out
    assert len(run.metrics("end")) == 1


@pytest.mark.long
def test_tensorboard_shows_each_step_once_also_after_a_resume(run: RunFolder) -> None:
    """The real one: step 6 is trained, lost by a KILL, and trained again."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings: dict[str, Any] = {"epochs": 2, "batch_size": 20, "log_every": 1, "track": ["tensorboard"]}
    run.write("Slow", **settings)
    assert run.ranks(1, SMALL_FAULT="SIGKILL:10:0").codes == [-9]
    assert run.ranks(1).codes == [0]
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    newest = {line["step"]: line["values"]["loss"] for line in run.metrics("train")}
    shown = {event.step: event.value for event in events.Scalars("train/loss")}
    assert len(events.Scalars("train/loss")) == len(shown) == 10
    assert shown == pytest.approx(newest, rel=1e-6)
    assert {"eval/loss", "checkpoint/seconds", "end/epochs", "restart/lost_seconds"} <= set(
        events.Tags()["scalars"]
    )
