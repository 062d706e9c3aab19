"""A command, what this machine can see of its files, and what is said of one that is not there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from slurmgpu.files.regular import open_regular, text_of
from slurmgpu.models.plan import Plan
from slurmgpu.submission.slips.nearby import elsewhere, is_there, near_file, one_slip_apart

__all__ = [
    "Command",
    "Slip",
    "first_line",
    "is_batch_script",
    "missing_script",
    "other_folder",
    "read_by",
    "seen_from_here",
    "what_it_has",
]

_OF_A_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/local")
"""Folders that each node has of its own."""


class Slip(NamedTuple):
    """What is wrong with a command, and the next act."""

    message: str
    hint: str
    sure: bool = True
    """Nothing that this machine can see would make it work; else it is a guess."""
    forceable: bool = True
    """Whether --force may start the job all the same."""


class Command(NamedTuple):
    """A command, and what this machine can see of the place that it will run in."""

    words: tuple[str, ...]
    plan: Plan
    folder: Path | None
    """The work folder as far as this machine knows it."""
    cwd: Path
    environ: Mapping[str, str]
    in_file: bool = False
    """Written in a job file, not after ``--``."""
    blind: bool = False
    """The files that the job will find are not for sure those that this machine sees."""

    before: tuple[str, ...] = ()
    """Words that come before these and stay: ``nice``, ``uv run``."""
    brought: bool = False
    """Lines of the script above it may have brought programs to PATH."""
    in_script: bool = False
    """Written in a shell's script, whose lines are the user's own."""

    def instead(self, *words: str) -> str:
        """How to write other words in its place."""
        if self.in_script:
            return " ".join(map(_quoted, (*self.before, *words)))
        line = shlex.join((*self.before, *words))
        return f"command: {line}" if self.in_file else f"-- {line}"


def _quoted(word: str) -> str:
    """Return a word as a script has it: a variable within it goes on being one."""
    return (
        f'"{word}"' if re.search(r"\$[\w{]", word) and not re.search(r"[\"`\\!]", word) else shlex.quote(word)
    )


def read_by(path: Path) -> str | None:
    """The program that reads a file, by the end of its name."""
    readers = {".py": "python", ".pyz": "python", ".sh": "bash", ".R": "Rscript", ".jl": "julia"}
    return readers.get(path.suffix)


def first_line(path: Path) -> bytes:
    """The first line of a file, without its end; nothing of one that cannot be read."""
    try:
        with open_regular(path) as file:
            return file.readline(300).rstrip(b"\n")
    except OSError:
        return b""


def is_batch_script(path: Path) -> bool:
    """Return whether a file asks sbatch for something."""
    return re.search(r"(?m)^#SBATCH\s", text_of(path)[:4000]) is not None


def missing_script(
    command: Command, folder: Path, script: str, before: tuple[str, ...], after: tuple[str, ...]
) -> Slip:
    """The slip of a script that is not there; ``before`` and ``after`` are the command's words around it."""
    path = folder / script
    near = near_file(path)
    first = script.partition(" ")[0]
    if first != script and is_there(folder / first):
        hint = f"write it without the quotes around it: {command.instead(*before, *script.split(), *after)}"
    elif near and (one_slip_apart(path.name, near) or _found_elsewhere(command, script) is None):
        there = str(PurePosixPath(script).parent / near)
        hint = f"did you mean {there}? {command.instead(*before, there, *after)}"
    else:
        hint = other_folder(command, script, before, after)
    sure = not command.blind and seen_from_here(path, folder)
    return Slip(f"command: {script} is not in the work folder {folder}", hint, sure)


def _found_elsewhere(command: Command, name: str) -> Path | None:
    assert command.folder is not None
    return None if name.startswith("/") else elsewhere(command.folder, command.cwd, name)


def other_folder(
    command: Command, name: str, before: tuple[str, ...] = (), after: tuple[str, ...] = ()
) -> str:
    """Where else the file is: below the work folder, above it, or where the user is."""
    assert command.folder is not None
    found = _found_elsewhere(command, name)
    if found is None:
        return f"give its path against the work folder, or the work folder by -D FOLDER; {what_it_has(command.folder)}"
    if ".." in Path(name).parts:  # against that folder it would be right, and nobody means that
        return f"write {command.instead(*before, os.path.relpath(found / name, command.folder), *after)}"
    shown = shlex.quote(os.path.relpath(found, command.cwd))
    words = (*before, os.path.relpath(found / name, command.folder), *after)
    if command.in_script:  # which may have changed its folder itself
        if command.folder != command.cwd and found == command.cwd:
            return f"it is in {found}: take the cd above it out, or write {command.instead(*words)}"
        return f"it is in {found}: write {command.instead(*words)}"
    return f"it is in {found}: give that folder by -D {shown}, or write {command.instead(*words)}"


def what_it_has(folder: Path) -> str:
    """The Python files of a folder, in words."""
    try:
        scripts = sorted(one.name for one in folder.glob("*.py"))
    except OSError:
        scripts = []
    return f"it has {', '.join(scripts[:5])}" if scripts else "it has no .py file"


def seen_from_here(path: Path, folder: Path) -> bool:
    """Whether what is not there is not there for the job either: other folders may be the nodes' own."""
    if os.path.islink(path):  # noqa: PTH114 - a link to nowhere here may lead somewhere on a node
        return False
    if path.is_relative_to(folder):
        return True
    return path.parent.is_dir() and not str(path).startswith(_OF_A_NODE)
