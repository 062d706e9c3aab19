"""Python environments in real jobs: made by venv and by uv; by conda's layout, where no conda program is to be had."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inside.conftest import last_words
from tests.inside.venvs import venv_with
from tests.slurm.tool import Submitted, Tool

SEEN = ("python", "-c", "import sys, os; print(sys.prefix, os.environ.get('FROM_SCRIPT'))")


def run(tool: Tool, python: dict[str, Any], *command: str, force: bool = False) -> Submitted:
    """Submit a command in a Python environment, and wait for it; its code runs under set -euo pipefail."""
    job = {"environment": {"python": python}, "command": command, "resources": {"gpus": 1}}
    file = tool.file("job.yaml", json.dumps(job))
    return tool.submit(str(file), *(["--force"] if force else []), "--wait")


def test_a_venv_runs_the_command(tool: Tool, executed: Callable[..., None]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tool.work / "env"], check=True)
    job = run(tool, {"venv": "env"}, *SEEN)
    assert (job.code, job.log) == (0, f"{tool.work}/env None\n")
    executed("environment", "venv", platform.python_version(), "a job in an environment of python -m venv")


@pytest.fixture
def uv(tool: Tool) -> Path:
    """The real uv, on the PATH of the shell that submits and of its jobs; a project of it in the work folder."""
    program = venv_with("uv") / "bin" / "uv"
    tool.env["PATH"] = f"{program.parent}:{tool.env['PATH']}"
    tool.env["UV_PYTHON"] = sys.executable
    tool.file("proj/pyproject.toml", '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\n')
    return program


def sync(tool: Tool, uv: Path) -> str:
    subprocess.run([uv, "sync", "--offline", "--project", tool.work / "proj"], env=tool.env, check=True)
    done = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_a_uv_project_runs_commands_and_uv_run(tool: Tool, uv: Path, executed: Callable[..., None]) -> None:
    version = sync(tool, uv)
    job = run(tool, {"uv": "proj"}, *SEEN)
    assert (job.code, job.log) == (0, f"{tool.work}/proj/.venv None\n")
    # A dependency that is not installed would have to be fetched: uv run leaves the environment as it is.
    project = tool.work / "proj" / "pyproject.toml"
    project.write_text(project.read_text() + 'dependencies = ["no-such-package-of-anybody"]\n')
    job = run(tool, {"uv": "proj"}, "uv", "run", "--project", "proj", *SEEN)
    assert (job.code, job.log.splitlines()[-1]) == (0, f"{tool.work}/proj/.venv None"), job.log
    executed("environment", "uv", version, "a job in a project's .venv, and uv run in it without a network")


def test_a_uv_project_is_looked_at_before_its_job_waits(tool: Tool, uv: Path) -> None:
    said = tool.submit_refused(str(tool.file("job.yaml", json.dumps(
        {"environment": {"python": {"uv": "proj"}}, "command": ["true"], "resources": {"gpus": 1}}
    ))))  # fmt: skip
    assert "environment.python.uv.project: 'proj' has no environment" in said
    assert "uv sync --project proj" in said
    job = run(tool, {"uv": "proj"}, *SEEN, force=True)
    assert job.code == 1
    assert last_words(job.log).startswith("slurmgpu: no virtual environment at proj/.venv/bin/activate on ")
    sync(tool, uv)
    assert "newer" not in run(tool, {"uv": "proj"}, "true").stderr
    lock = tool.work / "proj" / "uv.lock"
    os.utime(lock, (lock.stat().st_mtime + 60,) * 2)
    assert "has a uv.lock that is newer than its environment" in run(tool, {"uv": "proj"}, "true").stderr


def made_conda(prefix: Path) -> Path:
    """A conda environment as conda lays it out, with an activation script that fails under set -eu."""
    for folder in ("conda-meta", "bin", "etc/conda/activate.d"):
        (prefix / folder).mkdir(parents=True)
    (prefix / "conda-meta" / "history").touch()
    (prefix / "etc/conda/activate.d/x.sh").write_text('false; export FROM_SCRIPT="$NOT_SET"yes\n')
    (prefix / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (prefix / "bin" / "python").chmod(0o755)
    (prefix / "bin" / "python3").symlink_to("python")
    return prefix


SHOWN = ("sh", "-c", 'echo "$CONDA_PREFIX $FROM_SCRIPT"; command -v python')


def test_a_conda_environment_by_its_folder_needs_no_conda(tool: Tool, executed: Callable[..., None]) -> None:
    prefix = made_conda(tool.work / "envs" / "torch")
    tool.env["HOME"] = str(tool.work)
    job = run(tool, {"conda": str(prefix)}, *SHOWN)
    assert (job.code, job.log) == (0, f"{prefix} yes\n{prefix}/bin/python\n")
    executed(
        "environment", "conda, by its folder, without conda", "-", "a job in a folder with conda's layout"
    )


# What `micromamba shell hook` prints, shortened: a function that asks the program what to export.
MICROMAMBA = """\
#!/bin/sh
case "$*" in
    "shell hook --shell bash") echo 'micromamba() { eval "$("$HOME/.local/bin/micromamba" shell "$@" --shell bash)"; }' ;;
    "shell activate torch --shell bash") echo "export CONDA_PREFIX=$HOME/envs/torch PATH=$HOME/envs/torch/bin:$PATH" ;;
    *) echo "critical libmamba Cannot activate, prefix does not exist" >&2; echo false ;;
esac
"""


def test_micromamba_is_asked_as_it_wants_to_be(tool: Tool, executed: Callable[..., None]) -> None:
    prefix = made_conda(tool.work / "envs" / "torch")
    program = tool.work / ".local" / "bin" / "micromamba"
    program.parent.mkdir(parents=True)
    program.write_text(MICROMAMBA)
    program.chmod(0o755)
    tool.env["HOME"] = str(tool.work)
    job = run(tool, {"conda": "torch"}, "sh", "-c", 'echo "$CONDA_PREFIX"; command -v python')
    assert (job.code, job.log) == (0, f"{prefix}\n{prefix}/bin/python\n")
    job = run(tool, {"conda": "other"}, "true")
    assert (job.code, last_words(job.log)) == (1, "slurmgpu: micromamba could not activate other")
    executed("environment", "conda, by micromamba", "-", "a job that activates by name", stand_in=True)


def test_a_pixi_environment_is_activated_as_it_lies_there(tool: Tool, executed: Callable[..., None]) -> None:
    prefix = made_conda(tool.work / "proj" / ".pixi" / "envs" / "gpu")
    tool.file("proj/pixi.toml", "[workspace]\n")
    job = run(tool, {"pixi": {"project": str(tool.work / "proj"), "env": "gpu"}}, *SHOWN)
    assert (job.code, job.log) == (0, f"{prefix} yes\n{prefix}/bin/python\n")
    missing = run(tool, {"pixi": {"project": str(tool.work / "proj"), "env": "cpu"}}, "true", force=True)
    assert missing.code == 1
    assert missing.log.startswith(f"slurmgpu: no pixi environment cpu in {tool.work}/proj on ")
    executed("environment", "pixi, without pixi on the node", "-", "a job in a folder with pixi's layout")
