"""The job files that ship with slurmgpu, to copy from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.data import data_folder, example_names

__all__ = ["copy_example", "example_named", "examples"]

_COMMAND = re.compile(r"#\s{2,}(\S.*)")


class Example(NamedTuple):
    """A shipped job file and what it needs beside it."""

    name: str
    about: str
    """What it is for: its first line."""
    files: tuple[Path, ...]
    """The job file, then every shipped file that it names."""
    usage: tuple[str, ...]
    """The commands that its head shows; empty where submitting it is all."""


def examples() -> list[Example]:
    """All shipped job files by name."""
    return [_read(name) for name in example_names()]


def example_named(name: str) -> Example:
    """One of them; InvalidInput for a name that there is not."""
    names = example_names()
    if name not in names:
        raise InvalidInput(
            f"NAME {name!r}: there is no such job file; {did_you_mean(name, names)}there are {', '.join(names)}",
            hint="slurmgpu jobs says what each is for",
        )
    return _read(name)


def _read(name: str) -> Example:
    folder = data_folder("jobs")
    path = folder / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    about, *others = text.splitlines()
    head = others[: next((number for number, line in enumerate(others) if line[:1] != "#"), 0)]
    needed = _named_in(path)
    # The other job of a pipeline brings what it starts.
    needed += [file for other in needed if other.suffix == ".yaml" for file in _named_in(other)]
    files = dict.fromkeys([path, *needed])
    usage = tuple(match[1] for line in head if (match := _COMMAND.match(line)))
    return Example(name, about.lstrip("# "), tuple(files), usage)


def _named_in(path: Path) -> list[Path]:
    """The shipped files that a job file names, in a command or a comment."""
    names = sorted(set(re.findall(r"[\w.-]+\.(?:py|yaml)\b", path.read_text(encoding="utf-8"))))
    return [path.parent / name for name in names if (path.parent / name).is_file()]


def copy_example(example: Example, folder: Path) -> list[Path]:
    """Copy its files into a folder, made if missing; return the new ones.

    InvalidInput, and nothing copied, where another file has one of their names.
    """
    targets = {source: folder / source.name for source in example.files}
    new = [source for source, target in targets.items() if not _is_there(source, target, example.name)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in new:
            with targets[source].open("xb") as file:
                file.write(source.read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"FOLDER {str(folder)!r}: {error.strerror}", hint="give a folder in which you may write"
        ) from None
    return [targets[source] for source in new]


def _is_there(source: Path, target: Path, name: str) -> bool:
    try:
        if target.read_bytes() == source.read_bytes():
            return True
    except FileNotFoundError:
        return False
    except OSError:
        pass
    raise InvalidInput(
        f"{target} exists already and is another file; nothing was copied",
        hint=f"name another folder: slurmgpu jobs copy {name} FOLDER",
    )
