"""The launcher of a command: one of the shipped ones, or a program that slurmgpu itself never starts."""

from __future__ import annotations

import importlib
from pathlib import Path

from slurmgpu.launchers._base import Launcher, LaunchLine, Started, spread
from slurmgpu.lines.command import PythonCommand, program_name, python_command, runner_length

__all__ = [
    "PROGRAMS",
    "SHIPPED",
    "launch_line",
    "launcher_in",
    "launcher_module",
    "program_starting",
    "python_files",
    "started_by",
    "stays_on_its_node",
]

SHIPPED: dict[str, Launcher] = {
    file.stem: importlib.import_module(f"slurmgpu.launchers.{file.stem}").LAUNCHER
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py"))
}
"""The launchers that come with slurmgpu, by their names."""

_ON_ITS_NODE = {"torchpippy", "horovodrun", "composer", "colossalai"}
_SPREADING = {
    *("ibrun", "jsrun", "aprun", "parallel", "pdsh", "clush", "dask", "charmrun", "sbatch"),
}
_MODULES = {"horovod.runner.launch": "horovodrun", "composer.cli.launcher": "composer"}

_PROGRAMS = {program: one for one in SHIPPED.values() for program in one.programs}
_BY_MODULE = _MODULES | {module: one.programs[0] for one in SHIPPED.values() for module in one.modules}
PROGRAMS = frozenset(_PROGRAMS) | _ON_ITS_NODE | _SPREADING
"""Programs that start several processes, or whole jobs."""


def launcher_module(module: str | None) -> str | None:
    """Return the launcher that a module is: ``torch.distributed.run`` is torchrun; None for any other."""
    return _BY_MODULE.get(module or "")


def program_starting(words: tuple[str, ...]) -> str | None:
    """Return the program of a command that starts several processes itself; None for any other."""
    python = python_command(words)
    if python is not None:
        return launcher_module(python.module)
    program = program_name(words[runner_length(words)])
    return program if program in PROGRAMS else None


def launcher_in(words: tuple[str, ...]) -> Launcher | None:
    """Return the shipped launcher by which a command starts its processes; None where it is none of them."""
    return _PROGRAMS.get(program_starting(words) or "") if words else None


def launch_line(words: tuple[str, ...]) -> LaunchLine | None:
    """Take a command of a launcher apart whose options are known; None for any other."""
    found = launcher_in(words)
    return found.read(words) if found else None


def stays_on_its_node(program: str) -> bool:
    """Return True if a program starts all its processes on the node where it runs."""
    shipped = _PROGRAMS.get(program)
    return program in _ON_ITS_NODE or (shipped is not None and not shipped.spreads)


def started_by(words: tuple[str, ...], gpus: int, nodes: int = 1) -> Started | None:
    """Return what a launcher in a command starts, in a job of so many nodes with so many GPUs each; None: none is there."""
    program = program_starting(words) if words else None
    if program is None:
        return None
    if shipped := _PROGRAMS.get(program):
        return shipped.started(words, gpus, nodes)
    return None if program in _ON_ITS_NODE else spread(program, None, nodes)


def python_files(words: tuple[str, ...]) -> tuple[str, ...]:
    """The files that may be the script of a command, the likeliest first: python's, or a launcher's (torchrun train.py)."""
    python: PythonCommand | None = python_command(words)
    if python is None or launcher_module(python.module):
        return tuple(word for word in words[1:] if word.endswith(".py"))
    if python.script:
        return (python.script,)
    module = (python.module or "").replace(".", "/")
    return (f"{module}.py", f"{module}/__main__.py")
