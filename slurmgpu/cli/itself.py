"""slurmgpu in a process of its own."""

from __future__ import annotations

import sys

__all__ = ["command_of"]

# `python -m` would import what lies in the folder of the jobs first, and a project may have a file called click.py.
_START = "import sys; sys.path[:] = filter(None, sys.path); from slurmgpu.cli import main; main()"


def command_of(*words: str) -> list[str]:
    """The command line of ``slurmgpu WORDS``, with this Python and its packages."""
    return [sys.executable, "-c", _START, *words]
