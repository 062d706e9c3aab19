"""The digits example in environments of every kind: the same file learns the same."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inside.test_launchers import HOW
from tests.inside.test_modules import lmod
from tests.inside.test_pythons import made_conda
from tests.inside.venvs import see_ours
from tests.slurm.tool import Tool

Digits = Callable[[dict[str, Any]], str]


def made_venv(tool: Tool) -> Path:
    folder = tool.work / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    see_ours(folder)
    return folder


def venv(tool: Tool) -> tuple[dict[str, Any], str]:
    return {"python": {"venv": str(made_venv(tool))}}, platform.python_version()


def conda(tool: Tool) -> tuple[dict[str, Any], str]:
    return {"python": {"conda": str(made_conda(tool.work / "envs" / "torch"))}}, "-"


def module(tool: Tool) -> tuple[dict[str, Any], str]:
    system = lmod()
    file = tool.work / "modules" / "torch" / "2.9"
    file.parent.mkdir(parents=True)
    file.write_text(f"#%Module\nprepend-path PATH {made_venv(tool)}/bin\n")
    return {"modules": {"use": [str(file.parents[1])], "load": ["torch/2.9"]}}, system.version


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("form", "made"), [("venv", venv), ("conda, by its folder", conda), ("modules: Lmod", module)]
)
def test_the_digits_are_learnt_in(
    form: str,
    made: Callable[[Tool], tuple[dict[str, Any], str]],
    tool: Tool,
    digits: Digits,
    executed: Callable[..., None],
) -> None:
    environment, version = made(tool)
    reached = digits(environment)
    assert reached == digits({})
    executed(
        "environment", f"{form}: the digits example", version, f"{HOW}, accuracy {reached} in and outside"
    )
