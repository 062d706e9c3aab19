"""A loop of one's own: ten lines make it resumable."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slurmgpu.training import Run
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.saving.lock import Lock
from tests import ready
from tests.ready import free_port

from .conftest import ROOT, clean_environment, has_fsdp2, same

FOLDER = ROOT / "examples" / "own_loop"
SCRIPTS = {path.stem: path.read_text() for path in (ROOT / "tests" / "data" / "own_loops").glob("*.txt")}


def start(script: Path, run_dir: Path, **extra: str) -> subprocess.Popen[str]:
    environment = clean_environment(run_dir) | extra
    return ready.start(
        [sys.executable, str(script)], environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def final(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    state = torch.load(run_dir / "checkpoints" / f"step-{step}" / "state.pt", weights_only=True)
    model: dict[str, torch.Tensor] = state["model"]
    return model


def test_the_example_adds_at_most_ten_lines_to_a_plain_script() -> None:
    plain, own = ((FOLDER / name).read_text().splitlines() for name in ("plain.py", "train.py"))
    stripped = [line.strip() for line in plain], [line.strip() for line in own]
    added = [line for line in difflib.ndiff(*stripped) if line.startswith("+ ") and line.strip() != "+"]
    assert len(added) <= 10


@pytest.mark.long
@pytest.mark.parametrize("example", [pytest.param("train.py", marks=pytest.mark.chosen), "epochs.py"])
def test_a_plain_loop_killed_and_stopped_ends_bit_for_bit_as_an_undisturbed_one(
    tmp_path: Path, example: str
) -> None:
    slow = tmp_path / "slow.py"
    text = (FOLDER / example).read_text()
    slow.write_text(text.replace("loss.backward()", "__import__('time').sleep(0.03); loss.backward()"))
    for name in ("undisturbed", "run"):
        (tmp_path / name).mkdir()
    undisturbed = start(FOLDER / example, tmp_path / "undisturbed")
    _, err = undisturbed.communicate(timeout=150)
    assert undisturbed.returncode == 0, err
    folder = tmp_path / "run" / "checkpoints"
    for number in (signal.SIGKILL, signal.SIGTERM):
        before = set(folder.glob("step-*/manifest.json"))
        process = start(slow, tmp_path / "run")
        end = time.monotonic() + 150
        while not set(folder.glob("step-*/manifest.json")) - before and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=150)
        assert process.returncode == (75 if number == signal.SIGTERM else -9), err
    marker = json.loads((tmp_path / "run" / "state" / "stop.json").read_text())
    assert (marker["reason"], marker["requeue"]) == ("SIGTERM", True)
    step = marker["step"]
    assert f"stopped by SIGTERM at step {step}, saved in checkpoints/step-{step}: start it again" in out
    process = start(FOLDER / example, tmp_path / "run")
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert same(final(tmp_path / "run", 800), final(tmp_path / "undisturbed", 800))
    best = [tmp_path / name / "best.pt" for name in ("run", "undisturbed")]
    if example == "epochs.py":
        assert same(*(torch.load(path, weights_only=True)["state"]["model"] for path in best))


def test_what_a_script_does_after_its_last_batch_is_its_own_affair(tmp_path: Path) -> None:
    """Nothing can be stopped in good order any more: a signal ends it, as it would end any script."""
    script = tmp_path / "train.py"
    text = (FOLDER / "train.py").read_text().replace("epochs=20", "epochs=1")
    script.write_text(f"{text}print('saved', flush=True)\n__import__('time').sleep(300)\n")
    process = start(script, tmp_path)
    assert "saved\n" in iter(process.stdout.readline, "")
    process.terminate()
    _, err = process.communicate(timeout=150)
    assert process.returncode == -signal.SIGTERM
    assert "Traceback" not in err
    assert not (tmp_path / "state" / "stop.json").exists()


@pytest.mark.long
def test_a_script_is_watched_for_a_hang_where_it_says_how_long_a_step_may_take(tmp_path: Path) -> None:
    (tmp_path / "unsaid").mkdir()
    unsaid = Run(tmp_path / "unsaid")
    assert unsaid._session.watch.hang_timeout is None
    unsaid._session.close()
    script = tmp_path / "train.py"
    text = (FOLDER / "train.py").read_text().replace("save_every=100", "save_every=100, hang_timeout=8")
    hangs = "    run.step == 3 and __import__('time').sleep(300)\n    loss.backward()"
    script.write_text(text.replace("    loss.backward()", hangs))
    _, err = (process := start(script, tmp_path)).communicate(timeout=150)
    assert process.returncode == 1
    assert "(hang_timeout) after step 3" in err


@pytest.mark.long
@pytest.mark.chosen
def test_two_processes_of_ones_own_go_on_where_they_were(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(SCRIPTS["two"])
    for name, leaves in (("straight", ["0"]), ("cut", ["9", "0"])):
        (tmp_path / name).mkdir()
        for leave in leaves:
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            both = []
            for rank in (0, 1):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                environment = clean_environment(tmp_path / name) | meet | own
                command = [sys.executable, str(script), str(rank), leave]
                both.append(ready.start(command, environment, stderr=subprocess.PIPE))
            for process in both:
                _, err = process.communicate(timeout=150)
                assert process.returncode == 0, err
    steps = max(int(path.name[5:]) for path in (tmp_path / "straight" / "checkpoints").glob("step-*"))
    assert steps == 25
    assert same(final(tmp_path / "cut", steps), final(tmp_path / "straight", steps))


@pytest.mark.long
def test_a_changed_model_and_a_second_run_are_refused_in_a_sentence(tmp_path: Path) -> None:
    text = (FOLDER / "train.py").read_text().replace("epochs=20", "epochs=1")
    for width, code, said in ((32, 0, ""), (16, 1, "step-40 does not fit what state() was given as model: ")):
        script = tmp_path / f"train{width}.py"
        script.write_text(text.replace("32", str(width)))
        ended = start(script, tmp_path)
        _, err = ended.communicate(timeout=150)
        assert ended.returncode == code, err
        assert said in err
    lock = Lock(tmp_path / "checkpoints", {}, print)
    lock.acquire()
    second = start(FOLDER / "train.py", tmp_path)
    _, err = second.communicate(timeout=150)
    lock.release()
    assert "two runs cannot share a run directory" in err
    assert "FileExistsError" not in err


def both(script: Path, run_dir: Path) -> list[str]:
    """What two processes print."""
    meet = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    started = []
    for rank in ("0", "1"):
        environment = clean_environment(run_dir) | meet | {"RANK": rank, "LOCAL_RANK": rank}
        command = [sys.executable, str(script), rank]
        started.append(ready.start(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    said = []
    for process in started:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        said.append(out.strip())
    return said


def test_what_is_a_ranks_own_comes_back_to_that_rank(tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(SCRIPTS["apart"])
    both(script, tmp_path)
    assert both(script, tmp_path) == ["['of rank 0'] [1.0]", "['of rank 1'] [2.0]"]


@pytest.mark.long
@pytest.mark.skipif(not has_fsdp2(), reason="this torch has no FSDP2")
@pytest.mark.chosen
def test_a_sharded_model_of_ones_own_loop_goes_on_to_the_bit_and_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, straight, halted = tmp_path / "sharded.py", tmp_path / "straight", tmp_path / "halted"
    script.write_text(SCRIPTS["sharded"])
    straight.mkdir()
    halted.mkdir()
    monkeypatch.setenv("STEPS", "4")
    expected = both(script, straight)
    monkeypatch.setenv("STEPS", "2")
    after_two = both(script, halted)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    shutil.copytree(halted, tmp_path / "one")
    run = Run(tmp_path / "one")
    assert run.state(model=model, optimizer=optimizer) == 2
    run._session.close()
    assert str([value.hex() for value in model[0].weight.flatten().tolist()]) == after_two[0]
    assert optimizer.state[model[0].weight]["exp_avg"].shape == (5, 3)
    monkeypatch.setenv("STEPS", "4")
    assert both(script, halted) == expected


class Sharded(torch.Tensor):
    """In place of torch's DTensor, of which each rank has a piece."""


Sharded.__name__ = "DTensor"


class Part:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def expanded() -> nn.Module:
    module = nn.Linear(1, 1)
    module.register_buffer("mask", torch.ones(1).expand(4))
    return module


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (
            Part({"weight": torch.ones(2).as_subclass(Sharded)}),
            "thing (Part) has sharded tensors in its state, and is neither a model nor an optimizer",
        ),
        (Part({"where": Path("x")}), "thing['where'] is a PosixPath, which a checkpoint cannot hold"),
        (Part({"raw": b"x"}), "thing['raw'] is a bytes, which a checkpoint cannot hold"),
        (Part({"seen": {1, 2}}), "thing['seen'] is a set, which a checkpoint cannot hold"),
        (expanded(), "thing (Linear) does not take its own state back"),
    ],
    ids=["sharded", "path", "bytes", "set", "expanded"],
)
def test_what_could_not_come_back_is_refused_before_a_step(tmp_path: Path, part: Any, reason: str) -> None:
    run = Run(tmp_path)
    with pytest.raises(TrainingError) as refused:
        run.state(thing=part)
    run._session.close()
    assert reason in str(refused.value)


class Loop:
    """A loop of one's own over four batches of two samples, in this process, which can be cut off and begun again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, []
        self.data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1))

    def open(self, **parts: Any) -> Run:
        self.run = Run(self.folder, save_every=1)
        self.model, self.rates = nn.Linear(1, 1), Part({"rate": 1.0})
        self.run.state(**(parts or {"model": self.model, "rates": self.rates}))
        return self.run

    def close(self) -> None:
        self.run._session.close()

    def train(self, until: int | None = None) -> None:
        """Go through two epochs, each with an end of its own; with ``until`` the job is stopped at that step."""
        run = self.open()
        for epoch in run.epochs(2):
            for (values,) in run.batches(self.data, 2):
                self.seen += values.flatten().tolist()
                if run.step + 1 == until:
                    run._session.watch.want("SIGTERM")
                if run.should_stop():
                    return self.close()
            self.rates.state["rate"] *= 0.5
            self.seen.append(f"end of {epoch}, {run.save_best(1 / (epoch + 1))}")
        run.save()
        self.close()
        return None


@pytest.mark.parametrize("until", [3, 4, 5, 8])
def test_each_epoch_ends_once_wherever_a_run_is_stopped(tmp_path: Path, until: int) -> None:
    straight, stopped = Loop(tmp_path / "straight"), Loop(tmp_path / "stopped")
    straight.train()
    stopped.train(until)
    stopped.train()
    assert stopped.seen == straight.seen
    assert straight.seen[-1] == "end of 1, True"
    for loop in (straight, stopped):
        again = len(loop.seen)
        loop.train()
        assert (loop.seen[again:], loop.rates.state["rate"]) == ([], 0.25)
        best = torch.load(loop.folder / "best.pt", weights_only=True)
        assert (best["value"], best["step"], best["state"].keys()) == (0.5, 8, {"model"})


def test_several_calls_of_state_add_up(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    run = loop.open(model=nn.Linear(1, 1))
    counts = Part({"seen": 3})
    run.state(counts=counts)
    run.should_stop()
    run.save()
    loop.close()
    run = loop.open(model=nn.Linear(1, 1))
    counts.state = {"seen": 0}
    with pytest.raises(TrainingError, match=r"of step 1 holds model, counts; state\(\) was given model"):
        run.should_stop()
    run.state(counts=counts)
    assert counts.state == {"seen": 3}
    run.should_stop()
    loop.close()


MISUSES: dict[str, tuple[Any, str]] = {
    "nothing is named": (lambda loop: Run(loop.folder).should_stop(), "call state("),
    "nothing to save": (lambda loop: Run(loop.folder).save(), "call state("),
    "a name twice": (lambda loop: loop.open().state(model=nn.Linear(1, 1)), "state() was given model before"),
    "a part named in the loop": (lambda loop: (loop.open().should_stop(), loop.run.state(more=Part({}))), "before the loop"),
    "an epoch a call": (
        lambda loop: [loop.run.should_stop() for _ in range(2) for _ in loop.run.batches(loop.data, 8, 1)]
        if loop.open() else None,
        "all batches of its 1 epoch, and would give none now",
    ),
    "no number of epochs": (lambda loop: next(loop.open().batches(loop.data, 2)), "needs a number of epochs"),
    "two numbers of epochs": (
        lambda loop: [next(loop.run.batches(loop.data, 2, 3)) for _ in loop.open().epochs(3)],
        "leave the number of epochs out",
    ),
    "another dataset": (
        lambda loop: (next(loop.open().batches(loop.data, 2, 3)), next(loop.run.batches(loop.data.tensors[0][:3], 2, 3))),
        "a dataset of 8 samples, and now one of 3",
    ),
    "an unknown mode": (lambda loop: loop.open().save_best(1.0, mode="lowest"), 'must be "min" or "max"'),
}  # fmt: skip


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_loop_that_would_silently_do_less_than_it_says_is_refused(tmp_path: Path, misuse: str) -> None:
    loop = Loop(tmp_path)
    act, reason = MISUSES[misuse]
    with pytest.raises(TrainingError) as refused:
        act(loop)
    assert reason in str(refused.value)


def test_a_loop_that_draws_batches_ahead_is_refused_and_one_that_accumulates_is_not(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    batches = loop.open().batches(loop.data, 2, epochs=3)
    next(batches)
    ahead = (loop.run.should_stop() for _ in batches)
    with pytest.raises(TrainingError, match="the first step drew 4 samples and each of the next 2"):
        list(ahead)
    loop.close()
    loop = Loop(tmp_path / "accumulates")
    for number, _ in enumerate(loop.open().batches(loop.data, 2, epochs=3), 1):
        if number % 3 == 0:
            loop.run.should_stop()
    assert loop.run.step == 4
    loop.close()


@pytest.mark.parametrize("at_a_time", [2, 100])
def test_a_loop_that_draws_several_batches_and_then_steps_through_them_is_refused(
    tmp_path: Path, at_a_time: int
) -> None:
    loop = Loop(tmp_path)
    batches = loop.open().batches(loop.data, 2, epochs=3)
    chunks = iter(lambda: list(islice(batches, at_a_time)), [])
    steps = (loop.run.should_stop() for chunk in chunks for _ in chunk)
    with pytest.raises(TrainingError, match="step 2: no batch was drawn since the last should_stop"):
        list(steps)
    loop.close()


def test_a_batch_that_was_only_looked_at_is_not_lost_whoever_puts_it_together(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    first = next(loop.open().batches(loop.data, 2, epochs=1))[0].tolist()
    assert next(loop.run.batches(loop.data, 2, epochs=1))[0].tolist() == first
    assert next(loop.run.batches(loop.data, 2, epochs=1, collate=lambda samples: len(samples))) == 2
    loop.close()
