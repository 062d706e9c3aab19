"""The lessons of frameworks other than PyTorch, as their reader submits them, with the real libraries."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inside.test_launchers import version_of
from tests.inside.venvs import venv_with
from tests.slurm.tool import ROOT, Tool

pytestmark = pytest.mark.heavy

LESSONS = ROOT / "examples" / "lessons"


def activated(venv: Path, tool: Tool) -> dict[str, str]:
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{tool.env['PATH']}"}


@pytest.fixture
def lessons(tool: Tool) -> Path:
    return Path(shutil.copytree(LESSONS, tool.work / "lessons"))


@pytest.fixture
def lesson(tool: Tool, lessons: Path) -> Callable[[str, Path], str]:
    """Submit a lesson with the Python of a venv: what the job printed, once it has COMPLETED."""

    def run(name: str, venv: Path) -> str:
        job = tool.submit(f"{name}.yaml", env=activated(venv, tool), cwd=lessons)
        state = tool.slurm.wait_for(job.job_id, timeout=500)
        assert state == "COMPLETED", f"{state}\n{job.log}"
        return job.log

    return run


def learned(log: str) -> bool:
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", log)]
    return len(losses) == 5 and losses[-1] < losses[0] / 2


def test_mirrored_strategy_learns(lesson: Callable[[str, Path], str], executed: Callable[..., None]) -> None:
    venv = venv_with("tensorflow-cpu==2.21.0")
    log = lesson("mirrored_strategy", venv)
    assert learned(log)
    assert "1 replicas" in log, "without GPUs there is one"
    version = version_of(venv, "tensorflow-cpu")
    executed("launcher", "plain: the lesson on MirroredStrategy", version, "1 node, on the CPU")


def test_ray_trains_on_both_nodes(lesson: Callable[[str, Path], str], executed: Callable[..., None]) -> None:
    venv = venv_with("ray[train]", beside=True)
    log = lesson("ray_tasks", venv)
    assert len(set(re.findall(r"rate (\S+): loss", log))) == 4
    assert "2 nodes, 4 GPUs" in log
    executed("launcher", "ray: the lesson on Ray", version_of(venv, "ray"), "2 nodes, 4 tasks")


def test_ray_trains_on_a_machine_without_gpus(tool: Tool, lessons: Path) -> None:
    venv = venv_with("ray[train]", beside=True)
    done = tool("run", "ray_tasks.yaml", "--here", env=activated(venv, tool), cwd=lessons)
    assert done.returncode == 0, done
    assert "1 nodes, 2 GPUs" in done.stdout
    assert len(re.findall(r"rate (\S+): loss", done.stdout)) == 4
