"""Stands in for apptainer and singularity: runs the container's command here, without the container."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from slurmgpu.lines.container import read_container
from slurmgpu.local.standins.folder import PretendedJob, say, say_once

__all__ = ["main"]

_RUNS = ("exec", "run", "shell", "test")


def _program(command: list[str], python: str) -> list[str]:
    """Find the program here: an absolute path inside the image usually is not one of this machine."""
    program = command[0]
    if "/" not in program or Path(program).exists():
        return command
    name = Path(program).name
    found = python if name.startswith("python") else shutil.which(name)
    return [found or program, *command[1:]]


def main(folder: str, arguments: list[str]) -> int:
    """Run what the container was to run; the first argument is the name it was called by."""
    tool, *words = arguments
    asked = read_container(words)
    if asked.action not in _RUNS:
        say_once(folder, f"{shlex.join([tool, *words])}: nothing is done in a local run")
        return 0 if asked.action in ("", "pull", "build", "inspect", "version", "cache") else 1
    if not asked.image:
        say(f"{tool} {asked.action}: no image is named")
        return 255
    python = PretendedJob.load(folder).python
    command = list(asked.command)
    if asked.action != "exec":
        # What the image would run is not known here; an image for PyTorch usually runs python.
        command = [python, *command] if asked.action == "run" else ["/bin/sh", *command]
    say_once(folder, f"{tool} {asked.action} {asked.image}: no container, this machine's own programs")
    if not command:
        say(f"{tool} exec {asked.image}: no command is named")
        return 1
    environment = dict(os.environ)
    for name, value in os.environ.items():
        for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
            if name.startswith(prefix):
                environment[name.removeprefix(prefix)] = value
    environment.update(asked.variables)
    if asked.pwd and Path(asked.pwd).is_dir():
        os.chdir(asked.pwd)
    command = _program(command, python)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        say(f"{tool} {asked.action}: {command[0]}: {error.strerror}")
        return 255
