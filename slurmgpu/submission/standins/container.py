"""Stands in for apptainer and singularity: runs the container's command here, without the container."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from .job import PretendedJob, say, say_once

__all__ = ["ContainerCommand", "main", "parse_container"]

# Options with a value, of apptainer 1.1 to 1.4 and singularity 3 (`apptainer exec --help`).
# All others are flags.
_WITH_VALUE = frozenset(
    """
    --config --add-caps --app --apply-cgroups --authfile --bind --blkio-weight --blkio-weight-device
    --cpu-shares --cpus --cpuset-cpus --cpuset-mems --cwd --dns --docker-host --drop-caps --env
    --env-file --fakerootpath --fusemount --home --hostname --memory --memory-reservation --memory-swap
    --mount --netns-path --network --network-args --oom-kill-disable --overlay --pem-path --pids-limit
    --pwd --scratch --security --shell --workdir -B -H -S -W -o -c
    """.split()  # noqa: SIM905
)
_RUNS = ("exec", "run", "shell", "test")


@dataclass(frozen=True)
class ContainerCommand:
    """What is asked of the container: the action, the image, the command and the variables to set."""

    action: str
    image: str = ""
    command: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    pwd: str = ""


def parse_container(words: list[str]) -> ContainerCommand:
    """Read the global options, the action, its options, the image and the command."""
    left = list(words)
    options = _take_options(left)
    if not left:
        return ContainerCommand(action="")
    action = left.pop(0)
    # `-s` and `-c` have values in no action that runs something here; global -c is --config.
    options += _take_options(left)
    image = left.pop(0) if left else ""
    variables = [
        (name, value)
        for option, text in options
        if option == "--env"
        for name, _, value in (pair.partition("=") for pair in text.split(","))
    ]
    pwd = next((text for option, text in reversed(options) if option in ("--pwd", "--cwd")), "")
    return ContainerCommand(action, image, tuple(left), tuple(variables), pwd)


def _take_options(left: list[str]) -> list[tuple[str, str]]:
    options: list[tuple[str, str]] = []
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not equals and name in _WITH_VALUE and left:
            value = left.pop(0)
        options.append((name, value))
    return options


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
    asked = parse_container(words)
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
