"""A command, the files of it that this machine sees, and what a misspelled word was meant to be."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import nearest
from slurmgpu.files.trust import is_confined, open_regular, text_of
from slurmgpu.models.plan import Plan

__all__ = [
    "Command",
    "Slip",
    "elsewhere",
    "first_line",
    "is_batch_script",
    "is_python",
    "is_there",
    "meant",
    "missing_script",
    "near_file",
    "near_word",
    "one_slip_apart",
    "other_folder",
    "read_by",
    "seen_from_here",
    "what_it_has",
]

if TYPE_CHECKING:
    from slurmgpu.slurm import Answer


# A folder of data may have a million files; what is beyond is not looked at.
_MOST_FILES = 2000
_DEEPEST = 3
_LEFT_OUT = frozenset({"__pycache__", "build", "node_modules", "runs", "site-packages", "venv", "wandb"})


def run_here(
    argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Answer:
    """Run a program of this machine, in an environment (default: this process's) as a job inherits it.

    Raises SlurmUnreachable where it cannot be started. What runs programs is loaded only now: many checks need none.
    """
    from slurmgpu.slurm import call, submission_env

    return call(argv, timeout=timeout, env=submission_env(env), cwd=cwd)


def is_there(path: Path) -> bool:
    """Return whether a path exists; Path.exists raises for a name that is too long for the disk."""
    return os.path.exists(path)  # noqa: PTH110


def near_word(word: str, words: Iterable[str]) -> str | None:
    """Return the word that was meant, if one is near."""
    known = [one for one in words if one != word]  # a link to nowhere has the name itself
    slipped = [one for one in known if one_slip_apart(word, one)]
    return next(iter(slipped), None) or nearest(word, known, cutoff=0.7)


def near_file(path: Path, *, folders: bool = False) -> str | None:
    """Return the name in the same folder that was meant; with ``folders`` only those."""
    if is_confined(path.parent):
        return None
    try:
        with os.scandir(path.parent) as entries:
            names = [
                entry.name for _, entry in zip(range(_MOST_FILES), entries, strict=False)
                if entry.is_dir() == folders
            ]  # fmt: skip
    except OSError:
        return None
    if path.suffix and not folders:
        alike = [name for name in names if Path(name).suffix == path.suffix]
        slip = next((name for name in alike if one_slip_apart(path.name, name)), None)
        # Without their endings, which would make any two alike.
        stem = nearest(path.stem, [Path(name).stem for name in alike], cutoff=0.7)
        near = slip or (f"{stem}{path.suffix}" if stem and stem != path.stem else None)
        return near or near_word(path.name, [name for name in names if name not in alike])
    by_stem = {Path(name).stem: name for name in names}
    return by_stem.get(path.name) if not folders and path.name in by_stem else near_word(path.name, names)


def meant(word: str, path: Path, *, folders: bool = False) -> str:
    """Return ``did you mean data/a.txt? `` where a file of nearly this name is there, spelled as the word is; else ''."""
    near = near_file(path, folders=folders)
    return f"did you mean {Path(word).with_name(near)}? " if near else ""


def one_slip_apart(word: str, other: str) -> bool:
    """Return whether two words differ by one slip: a letter more, less, another, or two that changed places.

    In words of up to four letters only places may change, or upper case: too many of them are words of their own.
    """
    if word == other:
        return False
    if word.lower() == other.lower():
        return True
    if len(word) == len(other):
        first, *more = (n for n in range(len(word)) if word[n] != other[n])
        if not more:
            return len(other) > 4
        return more == [first + 1] and word[first : first + 2] == other[first + 1] + other[first]
    shorter, longer = sorted((word, other), key=len)
    if len(longer) != len(shorter) + 1 or len(other) <= 4:
        return False
    return any(longer[:n] + longer[n + 1 :] == shorter for n in range(len(longer)))


def elsewhere(folder: Path, cwd: Path, name: str) -> Path | None:
    """Return the folder against which ``name`` would be there: where the user is, above the work folder, or below it."""
    if is_confined():
        return None
    for other in (cwd, *list(folder.parents)[:_DEEPEST]):
        if os.path.isfile(other / name):  # noqa: PTH113 - Path.is_file() raises in a folder that is closed to the user
            return other
    if folder == folder.parent:
        return None  # the whole machine lies below it
    looked_at = 0
    for place, names, _ in os.walk(folder):
        names[:] = sorted(one for one in names if not one.startswith(".") and one not in _LEFT_OUT)
        if len(Path(place).relative_to(folder).parts) >= _DEEPEST:
            names.clear()
        for below in names:
            if os.path.isfile(Path(place) / below / name):  # noqa: PTH113
                return Path(place) / below
        looked_at += len(names)
        if looked_at > _MOST_FILES:
            break
    return None


_OF_A_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/local")
"""Folders that each node has of its own."""


class Slip(NamedTuple):
    """A fault of a command, and the next act."""

    message: str
    hint: str
    sure: bool = True
    """Nothing that this machine can see would make it work; else it is a guess."""
    forceable: bool = True
    """True if --force may start the job all the same."""


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
        """Return how to write other words in its place."""
        words = (*self.before, *words)
        if self.in_script:  # where a variable within a word goes on being one
            live = re.compile(r"(?s)(?=.*\$[\w{])[^\"`\\!]*\Z")
            return " ".join(f'"{word}"' if live.match(word) else shlex.quote(word) for word in words)
        return f"command: {shlex.join(words)}" if self.in_file else f"-- {shlex.join(words)}"

    def lacks(self, path: Path) -> bool:
        """Return whether a path that is not there is surely not there for the job either."""
        return not self.blind and seen_from_here(path, self.folder or path)


def is_python(word: str) -> bool:
    """Return whether a word is a Python's name or path: ``python3.11``."""
    return re.fullmatch(r"python[\d.]*", PurePosixPath(word).name) is not None


def read_by(path: Path) -> str | None:
    """Return the program that reads a file, by the end of its name."""
    readers = {".py": "python", ".pyz": "python", ".sh": "bash", ".R": "Rscript", ".jl": "julia"}
    return readers.get(path.suffix)


def first_line(path: Path) -> bytes:
    """Return the first line of a file, without its end; nothing of one that cannot be read."""
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
    """Return the slip of a script that is not there; ``before`` and ``after`` are the command's words around it."""
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
    return Slip(f"command: {script} is not in the work folder {folder}", hint, command.lacks(path))


def _found_elsewhere(command: Command, name: str) -> Path | None:
    assert command.folder is not None
    return None if name.startswith("/") else elsewhere(command.folder, command.cwd, name)


def other_folder(
    command: Command, name: str, before: tuple[str, ...] = (), after: tuple[str, ...] = ()
) -> str:
    """Return where else the file is: below the work folder, above it, or where the user is."""
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
    """Return the Python files of a folder, in words."""
    try:
        scripts = sorted(one.name for one in folder.glob("*.py"))
    except OSError:
        scripts = []
    return f"it has {', '.join(scripts[:5])}" if scripts else "it has no .py file"


def seen_from_here(path: Path, folder: Path) -> bool:
    """Return whether what is not there is not there for the job either: other folders may be the nodes' own."""
    if os.path.islink(path):  # noqa: PTH114 - a link to nowhere here may lead somewhere on a node
        return False
    if path.is_relative_to(folder):
        return True
    return path.parent.is_dir() and not str(path).startswith(_OF_A_NODE)
