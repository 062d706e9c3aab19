"""What the tests in this folder share: a real Slurm, and the table of what has run for real."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inside.apptainer import apptainer_folder, root_folder
from tests.inside.table import Row, write
from tests.slurm.conftest import absent, pytest_terminal_summary, release, slurm
from tests.slurm.releases import ReleaseUnavailable
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Tool

__all__ = ["pytest_terminal_summary", "release", "slurm"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder needs a real Slurm, and programs that few machines have."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.inside)
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def apptainer() -> Path:
    """The folder of the program."""
    try:
        return apptainer_folder()
    except (ReleaseUnavailable, subprocess.CalledProcessError) as error:
        absent(f"no Apptainer here: {error}")


@pytest.fixture(scope="session")
def image(apptainer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SIF, built from a folder."""
    folder = tmp_path_factory.mktemp("image")
    sif = folder / "torch.sif"
    root = root_folder(folder / "root")
    done = subprocess.run([apptainer / "apptainer", "build", sif, root], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sif


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    """The command line, in an empty work folder."""
    return Tool(slurm, tmp_path)


@pytest.fixture
def digits(tool: Tool) -> Callable[[dict[str, Any]], str]:
    """Run the digits example on 2 nodes x 2 processes in an environment: the accuracy that it COMPLETED with."""
    folder = tool.work / "digits"
    shutil.copytree(ROOT / "examples" / "digits", folder, ignore=shutil.ignore_patterns("runs"))

    def run(environment: dict[str, Any]) -> str:
        size = ("--nodes", "2", "--gpus-per-node", "2", "--cpus-per-gpu", "2", "-t", "10")
        job = tool.submit(str(folder / "job.yaml"), *size, "--set", f"environment={json.dumps(environment)}")
        assert tool.slurm.wait_for(job.job_id, timeout=400) == "COMPLETED", job.log
        found = re.findall(r'"accuracy": ([0-9.]+)', (job.run_dir / "metrics.jsonl").read_text())
        return str(found[-1])

    return run


@pytest.fixture
def executed(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """To be called at a test's end: what has run, in which version, and how; a row of docs/reference/what-has-run.md."""
    rows: list[Row] = []

    def done(kind: str, form: str, version: str, how: str, *, stand_in: bool = False) -> None:
        rows.append(Row(kind, form, version, how, stand_in))

    yield done
    write(rows, request.getfixturevalue("slurm").version)


def last_words(log: str) -> str:
    """The last line of a job's own script, before what its end has found in the log."""
    found = ("slurmgpu: first cause", "slurmgpu: fix")
    return [line for line in log.splitlines() if not line.startswith(found)][-1]
