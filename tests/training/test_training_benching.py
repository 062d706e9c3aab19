"""The networks that are timed are the published ones; a step is timed in its parts."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.benching import task
from slurmgpu.training.benching import task as trying
from slurmgpu.training.benching.__main__ import _networks
from slurmgpu.training.benching.networks import NETWORKS
from slurmgpu.training.benching.node import measure_sums
from slurmgpu.training.benching.starting import Place, own_folder, start
from slurmgpu.training.benching.task import _Ended, _Lines, _watched, counted, summed
from slurmgpu.training.benching.timing import Pace, timed
from slurmgpu.training.formats.metrics import MetricsRow, metrics_line

from .conftest import ROOT

# Weights and biases by hand, from the layers of the code that was measured for the paper.
PARAMETERS = {
    "FCN-S": 26752 * 2048 * 2 + 2 * 2048 * 2048 + 3 * 2048 + 26752,
    "AlexNet-S": 62_378_344,  # Krizhevsky et al. on one device
    "ResNet-50": 25_557_032,  # He et al., as in torchvision
    "FCN-R": 784 * 2048 + 2048 * 4096 + 4096 * 1024 + 1024 * 10 + 2048 + 4096 + 1024 + 10,
    "AlexNet-R": 3 * 25 * 32 + 32 * 25 * 32 + 32 * 25 * 64 + 576 * 10 + 32 + 32 + 64 + 10,
    "LSTM": 10_000 * 256 * 2 + 10_000 + 2 * (8 * 256 * 256 + 8 * 256),
}


def test_the_networks_have_the_published_sizes() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(each.numel() for each in one.build().parameters()) for name, one in NETWORKS.items()
        }
    assert {name: counts[name] for name in PARAMETERS} == PARAMETERS
    assert 850_000 < counts["ResNet-56"] < 860_000  # 0.85 million (He et al., table 6)


def test_each_network_gives_a_score_for_each_class_that_it_is_asked_for() -> None:
    for name, one in NETWORKS.items():
        targets = one.targets(2)
        with torch.device("meta"):
            model = one.build()
        inputs = one.inputs(2).to("meta")
        scores = model.eval()(inputs)
        assert scores.shape[:-1] == targets.shape, name
        assert int(targets.max()) < scores.shape[-1], name


def test_what_warms_up_does_not_count_and_each_part_has_its_own_time() -> None:
    calls: list[str] = []
    parts = [lambda: calls.append("one"), lambda: calls.append("two")]
    rounds = timed(parts, torch.device("cpu"), Pace(warm_up=2, least=3, most=9, seconds=0.0))
    assert (len(rounds), {len(laps) for laps in rounds}) == (3, {2})
    assert calls == ["one", "two"] * 5
    assert len(timed(parts, torch.device("cpu"), Pace(warm_up=0, least=1, most=4, seconds=60.0))) == 4


def line(seconds: float, waited: float = 0.0) -> dict[str, Any]:
    return {
        "step_seconds": seconds, "data_wait_seconds": waited, "samples_per_second": 16 / seconds, "peak_memory_bytes": 1,
    }  # fmt: skip


QUICK, WAITS = line(0.25, 0.01), line(3.25, 3.0)  # of four workers: 4 s a round


def test_steps_that_wait_for_the_loader_count_in_whole_rounds_of_its_workers() -> None:
    a_round = [WAITS, QUICK, QUICK, QUICK]
    assert counted([QUICK, QUICK, QUICK], 4, 8.0) == []  # what lay ready is not what the loader can do
    for begun in range(4):
        rows = counted([*a_round[begun:], *a_round, *a_round[:begun]], 4, 8.0)
        assert len(rows) == 8
        assert summed(rows)["samples_per_second"] == 16.0


def test_steps_that_hardly_wait_all_count() -> None:
    assert len(counted([QUICK] * 30, 16, 8.0)) == 30


def test_the_time_of_a_step_and_the_samples_a_second_are_those_of_the_same_steps() -> None:
    found = summed([WAITS, QUICK, QUICK, QUICK])
    assert found["step_seconds"] * found["samples_per_second"] == 16.0
    assert found["waits_for_data"] == pytest.approx(3.03 / 4)


@pytest.mark.long
def test_two_processes_sum_or_one_says_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    small, large = measure_sums(Place(tmp_path, 2))
    assert (small["bytes"], large["bytes"], small["backend"]) == (25 << 20, 256 << 20, "gloo")
    assert small["gb_per_s"]["most"] == pytest.approx(small["bytes"] / 1e9 / small["seconds"]["least"])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    (tmp_path / "torch.py").write_text("raise ImportError('no torch today')")
    (failed,) = measure_sums(Place(tmp_path, 2))
    assert failed["why"] == "ImportError: no torch today"


def written(path: Path, *lines: dict[str, Any]) -> Path:
    with path.open("a") as file:
        file.writelines(metrics_line(MetricsRow("train", 0.0, 0, 1, one), 0) for one in lines)
    return path


def test_a_training_that_stands_still_after_its_first_steps_is_given_up(tmp_path: Path) -> None:
    metrics = written(tmp_path / "metrics.jsonl", QUICK, QUICK, QUICK)
    with subprocess.Popen(["sleep", "600"]) as still:
        found = _watched([still], metrics, Place(tmp_path, 1, seconds=0.0, patience=0.3), 1)
        still.kill()
    assert isinstance(found, _Ended)


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    lines = _Lines(metrics)
    assert lines.more() == []
    written(metrics, QUICK, WAITS)
    whole = metrics_line(MetricsRow("train", 0.0, 0, 1, {"loss": math.nan}), 0)
    with metrics.open("a") as file:
        file.write(whole[:20])
    assert lines.more() == [QUICK, WAITS]
    with metrics.open("a") as file:
        file.write(whole[20:] + metrics_line(MetricsRow("eval", 0.0, 0, 1, {}), 0))
    assert [list(row) for row in lines.more()] == [["loss"]]
    assert lines.more() == []


HANGS = """\
import os
import time

class Hangs:
    def model(self, cfg):
        os.symlink(str(os.getpid()), "pid")
        time.sleep(600)

    def dataset(self, cfg, split):
        return [0.0]

    def loss(self, model, batch):
        return batch
"""


@pytest.mark.long
def test_a_bench_that_is_interrupted_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(HANGS)
    (temporary := tmp_path / "tmp").mkdir()
    asked = {
        "kind": "task", "train": {"task": "task.py:Hangs"}, "folder": str(tmp_path), "samples": 1, "batch": 1,
        "processes": [1], "parts": [], "seconds": 0.2,
    }  # fmt: skip
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    command = [sys.executable, "-m", "slurmgpu.training.benching"]
    environ = {
        **os.environ,
        "SLURMGPU_RUN_DIR": str(tmp_path),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as bench:
        while not (tmp_path / "pid").is_symlink() and bench.poll() is None:
            time.sleep(0.05)
        bench.send_signal(signal.SIGTERM)
        _, told = bench.communicate(timeout=60)
    assert bench.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in told
    assert not list(temporary.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int(str((tmp_path / "pid").readlink())), 0)


def test_data_parallel_is_one_process_on_so_many_gpus_and_a_strategy_of_one_process_does_not_keep_others_from_being_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[str, int, int | None, int]] = []

    def noted(settings: Mapping[str, Any], place: Place, apart: bool = False) -> dict[str, Any]:
        if not apart:
            made.append((settings["strategy"], place.processes, place.gpus, settings["batch_size"]))
        return {"processes": place.processes, "samples_per_second": 1.0, "step_seconds": 1.0, "apart": apart}

    monkeypatch.setattr(task, "tried", noted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    asked = {
        "train": {"strategy": "single"}, "folder": str(tmp_path), "samples": 8, "batch": 8, "processes": None,
        "parts": ["scaling"], "seconds": 1.0,
    }  # fmt: skip
    found = list(task.tries(asked, lambda _: None))
    assert made == [
        ("auto", 1, None, 8),
        ("auto", 2, None, 16),
        ("auto", 2, None, 8),
        ("dp", 1, 2, 16),
        ("fsdp2", 2, None, 16),
    ]
    assert [(one["how"], one.get("gpus")) for one in found[-2:]] == [("dp", 2), ("fsdp2", None)]


def test_precisions_are_tried_in_rounds_until_each_repeats_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = iter([100.0, 50.0, 70.0, 80.0, 130.0, 51.0, 71.0, 81.0, 101.0, 50.5, 70.0, 80.0])
    monkeypatch.setattr(task._Bench, "one", lambda *_, **named: {**named, "samples_per_second": next(rates)})
    bench = task._Bench({"train": {}, "folder": str(tmp_path), "samples": 8, "batch": 8, "processes": [1],
                    "parts": ["precision"], "seconds": 1.0, "nodes": 1})  # fmt: skip
    found = list(task._precisions(bench, lambda _: None))
    assert [row["samples_per_second"] for row in found] == [101.0, 50.5, 70.0, 80.0]
    assert found[0]["rates"] == [100.0, 101.0, 130.0]


def test_communication_is_what_a_step_takes_less_without_it_or_unknown() -> None:
    row = {"step_seconds": 0.4}
    assert task._exchange(row, {"step_seconds": 0.3, "apart": True})["communication"] == pytest.approx(0.25)
    assert task._exchange(row, {"step_seconds": 0.41, "apart": True})["communication"] == 0
    assert (
        task._exchange(row, {"step_seconds": 0.5, "apart": True})["communication"] is None
    )  # too much noise
    assert task._exchange(row, {"step_seconds": 0.3, "apart": False})["communication"] is None
    assert task._exchange(row, {"why": "no step was done in time", "apart": True})["communication"] is None


def test_two_processes_train_without_telling_each_other_their_gradients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "toy.py").write_text(
        "import torch\n"
        "class Toy:\n"
        "    def model(self, cfg): return torch.nn.Linear(4, 2)\n"
        "    def dataset(self, cfg, split):\n"
        "        return torch.utils.data.TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))\n"
        "    def loss(self, model, batch): return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
    )
    settings = {"task": "toy.py:Toy", "strategy": "ddp", "device": "cpu", "batch_size": 8}
    found = trying.tried(settings, Place(tmp_path, 2, seconds=0.2), apart=True)
    assert (found["apart"], found["processes"]) == (True, 2), found.get("why")
    assert found["step_seconds"] > 0


def test_a_task_sees_as_many_steps_as_it_can_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def noted(_: str, run: str, *__: object) -> list[subprocess.Popen[bytes]]:
        seen.append(json.loads(Path(run, "train.json").read_text()))
        return []

    monkeypatch.setattr(trying, "start", noted)
    monkeypatch.setattr(trying, "_watched", lambda *_: [QUICK])
    trying.tried({"task": "task.py:Toy", "epochs": 3}, Place(tmp_path, 1, seconds=600.0))
    assert seen[0]["epochs"] == seen[0]["max_steps"] == 6_000_000


def test_a_training_that_takes_all_its_steps_in_time_is_measured_by_these(tmp_path: Path) -> None:
    metrics = written(tmp_path / "metrics.jsonl", *[WAITS] * 3, QUICK)
    with subprocess.Popen(["sleep", "0.3"]) as ends:
        found = _watched([ends], metrics, Place(tmp_path, 1, seconds=60.0), 1)
    assert isinstance(found, list)


def test_more_threads_than_cpus_and_a_crowd_of_processes_are_not_tried(tmp_path: Path) -> None:
    asked = {"networks": ["LSTM"], "threads": [1 << 20], "gpus": [], "precisions": [], "seconds": 1.0}
    (row,) = _networks(asked)
    assert row["why"].startswith("only ")
    bench = task._Bench(
        {
            "train": {"device": "cpu"}, "samples": 1, "batch": 1, "processes": [1 << 20], "parts": ["scaling"],
            "folder": str(tmp_path), "seconds": 1.0,
        }
    )  # fmt: skip
    assert "are the most that are tried" in bench.one("scaling", 1 << 20)["why"]


def test_what_a_killed_bench_left_is_removed_by_the_next_and_what_another_uses_is_not(tmp_path: Path) -> None:
    left = tmp_path / "slurmgpu-bench-left"
    left.mkdir()
    (left / "lock").touch()
    (other := tmp_path / "slurmgpu-bench-of-somebody").mkdir()  # without a lock: not known to be one
    with own_folder(str(tmp_path)) as used, own_folder(str(tmp_path)):
        assert Path(used).is_dir()
        assert not left.exists()
        assert other.is_dir()
    assert list(tmp_path.iterdir()) == [other]


STARTS = """\
import subprocess, sys, os, time
subprocess.Popen([sys.executable, "-m", "slurmgpu.training.benching.starting", str(os.getpid()), "stays"])
time.sleep(600)
"""


@pytest.mark.long
def test_what_is_tried_ends_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(
        "import os, time; os.symlink(str(os.getpid()), 'pid'); time.sleep(600)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    with subprocess.Popen([sys.executable, "-c", STARTS], env=environ, cwd=tmp_path) as bench:
        while not (tmp_path / "pid").is_symlink() and bench.poll() is None:
            time.sleep(0.05)
        bench.kill()
    pid = int(str((tmp_path / "pid").readlink()))
    for _ in range(600):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it goes on without the bench")


def test_a_process_sees_the_first_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).resolve().parents[2]}")
    for given, seen in ((None, "0,1"), ("4,GPU-5,6", "4,GPU-5")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if given:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        with (tmp_path / "said").open("wb") as said:
            (one,) = start("tells", str(tmp_path), Place(tmp_path, 1, gpus=2), said.fileno())
            one.wait()
        assert (tmp_path / "said").read_text() == f"{seen}\n"
