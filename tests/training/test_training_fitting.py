"""micro_batch: auto: the size is right, all ranks have the same, and nothing else of the training is touched."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from slurmgpu.training.errors import TrainingError
from slurmgpu.training.fitting import cache, finder, memory
from slurmgpu.training.fitting.finder import Answer
from slurmgpu.training.fitting.memory import Budget
from slurmgpu.training.fitting.search import Tried, largest, search
from slurmgpu.training.fitting.trial import Trial
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.settings import Settings
from slurmgpu.training.task import Task

from .conftest import TASKS, RunFolder, new_run, same

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 36, "lr": 0.05, "log_every": 1}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def machine(fixed: int, each: int, budget: int) -> Callable[[int], Tried]:
    """Memory that grows along a line."""

    def attempt(size: int) -> Tried:
        peak = fixed + each * size
        return Tried(size, peak <= budget, peak if peak <= budget else None)

    return attempt


def rounds(share: int, size: int) -> int:
    return -(-share // size)


@pytest.mark.parametrize("seed", range(20))
def test_no_size_tried_one_by_one_is_a_sixteenth_better(seed: int) -> None:
    draw = random.Random(seed)
    share, each, fixed = draw.randrange(1, 5000), draw.randrange(1, 10**7), draw.randrange(0, 10**9)
    budget = fixed + each * draw.randrange(1, 6000)
    tried = search(share, lambda: budget, machine(fixed, each, budget))
    found, best = largest(tried), min(share, (budget - fixed) // each)
    useful = rounds(share, rounds(share, best))
    assert 1 <= found <= best
    assert rounds(share, found) == rounds(share, best) or useful - found <= max(1, found // 16)
    assert len(tried) <= 16
    assert search(share, lambda: budget, pytest.fail, tried) == tried, "what is known is not tried again"


def test_memory_that_follows_no_line_is_found_all_the_same() -> None:
    """cuDNN takes another algorithm, and its workspace, from some size on."""

    def attempt(size: int) -> Tried:
        peak = 10 * size + (4000 if size > 100 else 0) + (size * size) // 50
        return Tried(size, peak <= 9000, peak)

    assert largest(search(1000, lambda: 9000, attempt)) >= 0.9 * 300 * 0.9
    best = max(size for size in range(1, 1001) if attempt(size).fits)
    assert rounds(1000, largest(search(1000, lambda: 9000, attempt))) == rounds(1000, best)


def test_where_two_do_not_fit_one_is_tried_and_where_one_does_not_none_is_found() -> None:
    assert largest(search(64, lambda: 100, machine(0, 60, 100))) == 1
    tried = search(64, lambda: 100, machine(0, 200, 100))
    assert ([each.size for each in tried], largest(tried)) == ([2, 1], 0)


class Machine:
    """Stands in for the process that tries: a step of n samples takes n bytes, an evaluation ``evaluated`` each."""

    def __init__(self, memory: int, evaluated: int = 0, error: str | None = None) -> None:
        self.memory, self.evaluated, self.error = memory, evaluated, error
        self.asked: list[tuple[int, int]] = []

    def __call__(self, *_: object) -> Machine:
        return self

    def read(self, _patience: float | None) -> dict[str, Any]:
        return {"tests": self.evaluated > 0, "budget": self.memory}

    def ask(self, request: dict[str, int], _patience: float | None) -> dict[str, Any]:
        self.asked.append((request["size"], request["rounds"]))
        if self.error is not None:
            return {"error": self.error}
        peak = request["size"] * (1 if request["rounds"] else self.evaluated)
        return {"fits": peak <= self.memory, "peak": peak}

    def was_killed(self) -> bool:
        return False

    def told(self, answer: dict[str, str]) -> str:
        return answer["error"]

    def close(self) -> None:
        pass


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Machine]:
    def use(pretended: Machine) -> Machine:
        monkeypatch.setattr(finder, "_Child", pretended)
        budget = Budget("A100", 2 * pretended.memory, pretended.memory)
        monkeypatch.setattr(finder, "budget_of", lambda *_: budget)
        return pretended

    return use


def trained(run: RunFolder, task: str = "Line", **settings: Any) -> RunFolder:
    run.write(task, **SETTINGS | settings)
    run.here()
    return run


def saved_settings(run: RunFolder) -> dict[str, Any]:
    newest = max(run.checkpoints(), key=lambda name: int(name.removeprefix("step-")))
    manifest = json.loads((run.path / "checkpoints" / newest / "manifest.json").read_text())
    settings: dict[str, Any] = manifest["settings"]
    return settings


Pretend = Callable[[Machine], Machine]


def test_the_size_found_is_said_and_saved_and_the_batch_stays(
    run: RunFolder, pretend: Pretend, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(Machine(12))
    trained(run, micro_batch="auto")
    said = capsys.readouterr().out
    assert "micro-batch 12: 12 samples at a time fit (tried 2, " in said
    assert "10% to be left free; batch 36 in 1 x 3 micro-batches" in said
    assert "batch 36 = 1 x 3 x 12" in said
    settings = saved_settings(run)
    assert (settings["micro_batch"], settings["accumulate"], settings["batch_size"]) == (12, 3, 36)


def test_an_evaluation_that_runs_out_takes_fewer_at_a_time_and_the_training_does_not(
    run: RunFolder, pretend: Pretend, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(Machine(12, evaluated=3))
    trained(run, micro_batch="auto")
    assert "evaluations take 4 at a time" in capsys.readouterr().out
    settings = saved_settings(run)
    assert (settings["micro_batch"], settings["eval_micro_batch"]) == (12, 4)


class InPieces(Machine):
    """Whose memory is in pieces after the first try."""

    tries = 0

    def __call__(self, *_: object) -> Machine:
        self.tries = 0
        return self

    def ask(self, request: dict[str, int], patience: float | None) -> dict[str, Any]:
        self.tries += 1
        answer = super().ask(request, patience)
        return answer if self.tries == 1 or request["size"] < 30 else {"fits": False, "peak": None}


def test_what_does_not_fit_after_other_tries_gets_its_own_process(run: RunFolder, pretend: Pretend) -> None:
    pretended = pretend(InPieces(36))
    trained(run, micro_batch="auto")
    assert saved_settings(run)["micro_batch"] == 36
    assert pretended.asked[-2:] == [(36, 1), (36, 1)]


def test_a_resume_takes_the_size_of_the_checkpoint_and_tries_nothing(
    run: RunFolder, pretend: Pretend, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(Machine(12, evaluated=3))
    trained(run, micro_batch="auto", max_steps=3)
    for each in own_cache.rglob("*.json"):
        each.unlink()
    now = pretend(Machine(36))
    capsys.readouterr()
    trained(run, micro_batch="auto")
    assert now.asked == []
    settings = saved_settings(run)
    assert (settings["micro_batch"], settings["eval_micro_batch"]) == (12, 4)
    assert "micro_batch" not in capsys.readouterr().out.partition("changed since")[2]


def test_a_second_run_finds_the_size_in_the_cache(
    tmp_path: Path, pretend: Pretend, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(Machine(12, evaluated=3))
    trained(new_run(tmp_path, "one"), micro_batch="auto")
    again = pretend(Machine(12, evaluated=3))
    capsys.readouterr()
    trained(new_run(tmp_path, "two"), micro_batch="auto")
    assert again.asked == []
    (file,) = own_cache.rglob("*.json")
    assert f"(known from {file})" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda text: text[:-20], "is not what was written there"),
        (lambda _text: "[]", "is not what was written there"),
        (lambda text: text.replace('"torch": "', '"torch": "0.'), "is of another state of: torch"),
        (lambda text: text.replace("[[2, true", '[["2", true'), "is not what was written there"),
        (lambda text: text.replace('"budget": 12', '"budget": 6'), "was made where less memory was free"),
        (lambda text: text.replace("true, 12]", "true, 99]"), "was made where more memory was free"),
    ],
)  # fmt: skip
def test_a_cache_that_is_stale_or_broken_is_left_with_a_word(
    tmp_path: Path,
    pretend: Pretend,
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[str], str],
    word: str,
) -> None:
    pretend(Machine(12))
    trained(new_run(tmp_path, "one"), micro_batch="auto")
    (file,) = own_cache.rglob("*.json")
    file.write_text(change(file.read_text()))
    now = pretend(Machine(12))
    trained(new_run(tmp_path, "two"), micro_batch="auto")
    said = capsys.readouterr().out
    assert f"note: {file} {word}" in " ".join(said.split())
    assert now.asked
    assert "micro-batch 12:" in said.partition("found anew")[2]


def test_a_larger_share_goes_on_from_what_the_cache_knows(tmp_path: Path, pretend: Pretend) -> None:
    pretend(Machine(50))
    trained(new_run(tmp_path, "one"), micro_batch="auto")
    now = pretend(Machine(50))
    run = trained(new_run(tmp_path, "two"), micro_batch="auto", batch_size=72)
    assert now.asked == [(72, 1)]
    assert saved_settings(run)["micro_batch"] == 36


def test_where_not_one_sample_fits_it_says_what_takes_less(run: RunFolder, pretend: Pretend) -> None:
    pretend(Machine(0))
    with pytest.raises(TrainingError, match=r"a step with one sample does not fit .* 10% .* precision: bf16"):
        trained(run, micro_batch="auto")


def test_a_try_that_fails_for_another_reason_says_so(run: RunFolder, pretend: Pretend) -> None:
    pretend(Machine(12, error="KeyError: 'labels'"))
    with pytest.raises(TrainingError, match="on rank 0: with 2 samples at a time: KeyError: 'labels'"):
        trained(run, micro_batch="auto")


def test_the_training_is_the_one_that_was_given_the_size_from_the_start(tmp_path: Path) -> None:
    """With real tries, in a process of their own: dropout, Python's random numbers and momentum are as they would be."""
    found = trained(new_run(tmp_path, "found"), "Restless", micro_batch="auto")
    given = trained(new_run(tmp_path, "given"), "Restless", micro_batch=36)
    assert saved_settings(found)["micro_batch"] == 36, "it fits on any machine that runs this"
    assert found.losses() == given.losses()
    assert found.metrics("eval")[-1]["values"]["loss"] == given.metrics("eval")[-1]["values"]["loss"]
    assert same(found.parameters(), given.parameters())


def test_the_budget_is_free_memory_less_head_room_divided_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_machine", lambda: (1000, 900))
    monkeypatch.setattr(memory, "_groups", lambda: [(600, 500), (2000, 2000)])
    assert memory.budget_of(torch.device("cpu"), 0.1, Ranks(0, 0, 4, 2))[:3] == ("CPU", 600, 220)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:132] . DefaultCPUAllocator: can't allocate memory: ..."
            ),
            True,
        ),
        (MemoryError(), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("Expected more than 1 value per channel when training"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, full: bool) -> None:
    assert memory.ran_out(error) is full


def test_steps_are_taken_until_the_peak_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library's heap grows for some steps, as it does in a training."""
    trial = Trial(
        Settings(f"{TASKS}:Split", batch_size=4),
        torch.device("cpu"),
        Budget("CPU", 1 << 40, 1 << 40),
        1,
        tmp_path,
    )
    peaks = [10, 12, 15, 15, 99]
    monkeypatch.setattr(trial.memory, "peak", lambda: peaks.pop(0))
    try:
        assert trial.step(2, 2) == 15
    finally:
        trial.session.close()
        sys.modules.pop("small")
    assert peaks == [99]


def test_another_text_of_the_task_is_another_fact(tmp_path: Path) -> None:
    file = tmp_path / "fitted.py"
    text = "class T:\n  def model(self, cfg): ...\n  def dataset(self, cfg, split): ...\n  def loss(self, model, batch): ...\n"
    file.write_text(text)
    space: dict[str, Any] = {}
    exec(text, space)
    task, settings = Task(space["T"], file), Settings(f"{file}:T")
    first = cache.facts_of(task, settings, together=False)
    file.write_text(text + "# more\n")
    assert cache.facts_of(task, settings, together=False) != first
    assert cache.facts_of(task, settings, together=True) != first


@pytest.mark.parametrize("ours", [False, True], ids=["mine.py", "slurmgpu:lstm"])
def test_a_run_whose_folder_lies_beside_the_task_knows_what_the_run_before_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """As by default: runs/ in the work folder, with a copy of the package in each run's folder."""
    text = "class T:\n  def model(self, cfg): ...\n  def dataset(self, cfg, split): ...\n  def loss(self, model, batch): ...\n"
    space: dict[str, Any] = {}
    exec(text, space)
    settings, keys, facts = Settings("slurmgpu:lstm" if ours else "mine.py:T"), set(), []
    for name in ("one", "two"):
        package = tmp_path / "runs" / name / "code" / "slurmgpu_training"
        file = package / "tasks" / "lstm.py" if ours else tmp_path / "mine.py"
        package.joinpath("tasks").mkdir(parents=True)
        for each in (file, package / "loop.py", package / "tasks" / "tokens.py"):
            each.write_text(text)
            monkeypatch.setitem(sys.modules, f"as_copied.{each.stem}", ModuleType("m"))
            sys.modules[f"as_copied.{each.stem}"].__file__ = str(each)
        monkeypatch.setattr(cache, "_OWN", package)
        task = Task(space["T"], file)
        keys.add(cache.path_of(task, Budget("A100", 2, 1), {"HOME": "/"}))
        facts.append(cache.facts_of(task, settings, together=False))
    assert len(keys) == 1
    assert facts[0] == facts[1]


def test_the_least_of_ranks_counts(monkeypatch: pytest.MonkeyPatch, run: RunFolder, pretend: Pretend) -> None:
    pretend(Machine(12))
    other = Answer(7, 3, 7, ("2", "7"), ("A100", 24))
    gather = finder.Session.__init__.__globals__["Group"].gather
    monkeypatch.setattr(
        finder.Session.__init__.__globals__["Group"],
        "gather",
        lambda self, value: [value, other] if isinstance(value, Answer) else gather(self, value),
    )
    trained(run, micro_batch="auto")
    settings = saved_settings(run)
    assert (settings["micro_batch"], settings["eval_micro_batch"]) == (6, 3)
