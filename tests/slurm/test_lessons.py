"""Each lesson, as its reader submits it: the job completes, and its log shows what the lesson says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Submitted, Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long]

LESSONS = ROOT / "examples" / "lessons"


def learned(log: str) -> None:
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", log)]
    assert len(losses) == 5, log
    assert losses[-1] < losses[0] / 2


def batches_are_whole_without_gpus(log: str) -> None:
    learned(log)
    assert re.findall(r"inside: \((\d+), 10\)", log) == ["50"]


def two_processes(log: str) -> None:
    learned(log)
    assert log.count("processes 2") == 5


def four_ranks_on_two_nodes(log: str) -> None:
    learned(log)
    seen = re.findall(r"rank (\d) of 4 on (\S+),", log)
    assert sorted(rank for rank, _ in seen) == ["0", "1", "2", "3"]


def both_halves(log: str) -> None:
    learned(log)
    assert len(re.findall(r"^(?:bottom|top)\S+ on ", log, re.M)) == 4


def two_stages(log: str) -> None:
    losses = [float(loss) for loss in re.findall(r"epoch \d/5 .* test loss ([\d.]+)", log)]
    assert len(losses) == 5, log
    assert losses[-1] < losses[0] / 2
    assert "training pipeline.py:Sums: processes: 2, nodes: 2" in log


def both_precisions(log: str) -> None:
    losses = dict(re.findall(r"torch\.(\w+): loss ([\d.]+)", log))
    assert list(losses) == ["float32", "bfloat16"]
    assert abs(float(losses["float32"]) - float(losses["bfloat16"])) < 0.05


def fewer_steps_than_batches(log: str) -> None:
    assert "50 steps of 200 samples" in log


def the_error_and_the_way_out(log: str) -> None:
    for rank in (0, 1):
        assert f"rank {rank}, without find_unused_parameters: Expected to have finished reduction" in log
        assert f"rank {rank}, with it: loss" in log


def operators(log: str) -> None:
    assert "aten::" in log
    assert log.rstrip().endswith("the trace is in trace.json")


def one_memory_and_one_error(log: str) -> None:
    assert ".to(cpu): the same tensor, [1.0, 0.0, 0.0]" in log
    assert "copy=True): a copy, [1.0, 0.0, 0.0]" in log
    assert "on cpu and meta: Tensor on device" in log


def faster_with_workers(log: str) -> None:
    assert re.findall(r"(\w+) workers?: [\d.]+ s", log) == ["no", "1", "2"]


def modes_and_means(log: str) -> None:
    assert re.findall(r"(True|False)$", log, re.M) == ["True"] * 4
    means = re.search(r"means ([\d.]+), of all samples ([\d.]+)", log)
    assert means is not None
    assert means[1] != means[2]


def equal_in_two(log: str) -> None:
    assert "going on behind epoch 2" in log
    assert log.rstrip().endswith(": equal")


def parts_of_memory(log: str) -> None:
    sizes = [float(one) for one in re.findall(r" ([\d.]+) MiB", log)]
    parameters, gradients, averages, plain, recomputed = sizes
    assert parameters == gradients == averages // 2
    assert recomputed < plain / 4


def progress_and_waiting(log: str) -> None:
    assert len(re.findall(r"epoch \d loss [\d.]+ \d+ samples/s, \d+ % of it waiting for data", log)) == 3


SHOWS: dict[str, Callable[[str], None]] = {
    "single_gpu": learned, "devices": one_memory_and_one_error, "data_loading": faster_with_workers,
    "evaluation": modes_and_means, "checkpoints": equal_in_two, "memory": parts_of_memory,
    "monitoring": progress_and_waiting, "data_parallel": batches_are_whole_without_gpus, "ddp_spawn": two_processes,
    "ddp_torchrun": four_ranks_on_two_nodes, "model_parallel": both_halves, "pipeline": two_stages,
    "mixed_precision": both_precisions, "accumulation": fewer_steps_than_batches,
    "unused_parameters": the_error_and_the_way_out, "profiler": operators,
}  # fmt: skip


@pytest.fixture(scope="module")
def submitted(slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Submitted]:
    folder = tmp_path_factory.mktemp("lessons")
    shutil.copytree(LESSONS, folder / "lessons")
    tool = Tool(slurm, folder)

    def submit(name: str) -> Submitted:
        return tool.submit(f"{name}.yaml", cwd=folder / "lessons")

    with ThreadPoolExecutor(2) as side_by_side:
        return dict(zip(SHOWS, side_by_side.map(submit, SHOWS), strict=True))


# tests/inside/test_lessons.py runs them with the libraries that they need, some hundred MB. Not Horovod's: its newest
# release, 0.28.1, is compiled as C++14, and the headers of torch 2.13 need C++17.
OF_OTHERS = ("mirrored_strategy", "ray_tasks", "horovod_ddp")


def test_every_lesson_is_known_here() -> None:
    scripts = {path.stem for path in LESSONS.glob("*.py")} - {"toy"}
    assert scripts == {path.stem for path in LESSONS.glob("*.yaml")} == {*SHOWS, *OF_OTHERS}


def test_the_table_of_lessons_names_each_of_them() -> None:
    table = (LESSONS / "README.md").read_text()
    assert re.findall(r"^\| \[\w+\]\((\w+)\.py\)", table, re.M) == [*SHOWS, *OF_OTHERS]


WORDS = dict(re.findall(r"^\| (\w+) \| `([^`]+)` \| .*[?.] \|$", (LESSONS / "README.md").read_text(), re.M))
"""What the page says that a lesson's log has in it; three points stand for figures."""


def test_each_lesson_has_words_to_look_for_and_an_exercise() -> None:
    assert list(WORDS) == list(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_a_lesson_completes_as_it_says(
    name: str, submitted: dict[str, Submitted], slurm: ThrowawaySlurm
) -> None:
    job = submitted[name]
    assert slurm.wait_for(job.job_id, timeout=500) == "COMPLETED", job.log
    SHOWS[name](job.log)
    assert re.search(".*".join(map(re.escape, WORDS[name].split("..."))), job.log), job.log
