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
    assert re.findall(r"inside: \((\d+), 5\)", log) == ["30", "30", "30", "10"]
    assert log.count("outside: ") == 4


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


SHOWS: dict[str, Callable[[str], None]] = {
    "single_gpu": learned, "data_parallel": batches_are_whole_without_gpus, "ddp_spawn": two_processes,
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


@pytest.mark.parametrize("name", SHOWS)
def test_a_lesson_completes_as_it_says(
    name: str, submitted: dict[str, Submitted], slurm: ThrowawaySlurm
) -> None:
    job = submitted[name]
    assert slurm.wait_for(job.job_id, timeout=500) == "COMPLETED", job.log
    SHOWS[name](job.log)
