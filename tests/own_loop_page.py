"""The part of docs/own-script.md on loops: its blocks, and a user with slurmgpu in one environment and torch in another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "own_loop"


def blocks(kind: str) -> list[str]:
    """The part's blocks of this language, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", part(), flags=re.MULTILINE | re.DOTALL)


def part() -> str:
    """The part of the page on loops of one's own."""
    page = (ROOT / "docs" / "own-script.md").read_text()
    return page.split("\n## 2. ")[1].split("\n## ")[0]


def commands() -> list[str]:
    """The part's command lines, in order."""
    return [line for block in blocks("sh") for line in block.splitlines()]


class User:
    """Types command lines in a copy of the example; ``python`` has torch and nothing else, ``slurmgpu`` is a program."""

    def __init__(self, folder: Path, alone: Path, env: Mapping[str, str]) -> None:
        self.work = folder / "own_loop"
        shutil.copytree(EXAMPLE, self.work, ignore=shutil.ignore_patterns("run", "runs", "__pycache__"))
        program = folder / "bin" / "slurmgpu"
        program.parent.mkdir()
        # Not by PYTHONPATH, which jobs would inherit.
        starts = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from slurmgpu.cli import main; main()"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{starts}" "$@"\n')
        program.chmod(0o755)
        dropped = ("PYTHON", "CONDA", "SLURMGPU_", "VIRTUAL_ENV")
        self.env = {name: value for name, value in env.items() if not name.startswith(dropped)} | {
            "PATH": f"{alone.parent}:{program.parent}:{env['PATH']}",
            "VIRTUAL_ENV": str(alone.parent.parent),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SLURMGPU_SITE": str(folder / "site"),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }

    def types(self, line: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command line; it must end with this exit code."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == code, f"{line}\n{done.stdout}{done.stderr}{self.logs()}"
        return done

    def logs(self) -> str:
        """All logs of all runs."""
        return "".join(f"{log}:\n{log.read_text()}" for log in self.work.glob("runs/*/logs/*"))

    def runs(self) -> list[Path]:
        """The run directories, the oldest first."""
        return sorted(self.work.glob("runs/*"), key=lambda path: path.stat().st_mtime_ns)


def without_slurm() -> dict[str, str]:
    """This process's environment without a job of Slurm's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
