"""What a misspelled word was meant to be: files, folders and names nearby."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from slurmgpu.errors import nearest
from slurmgpu.files.trust import is_confined

__all__ = ["elsewhere", "is_there", "meant", "near_file", "near_word", "one_slip_apart"]

# A folder of data may have a million files; what is beyond is not looked at.
_MOST_FILES = 2000
_DEEPEST = 3
_LEFT_OUT = frozenset({"__pycache__", "build", "node_modules", "runs", "site-packages", "venv", "wandb"})


def is_there(path: Path) -> bool:
    """Return whether a path exists; Path.exists raises for a name that is too long for the disk."""
    return os.path.exists(path)  # noqa: PTH110


def near_word(word: str, words: Iterable[str]) -> str | None:
    """The word that was meant, if one is near."""
    known = [one for one in words if one != word]  # a link to nowhere has the name itself
    slipped = [one for one in known if one_slip_apart(word, one)]
    return next(iter(slipped), None) or nearest(word, known, cutoff=0.7)


def near_file(path: Path, *, folders: bool = False) -> str | None:
    """The name in the same folder that was meant; with ``folders`` only those."""
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
    """Whether one slip of the fingers lies between two words: a letter more, less, other, or two that changed places.

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
    """The folder against which ``name`` would be there: where the user is, above the work folder, or below it."""
    if is_confined():
        return None
    for other in (cwd, *list(folder.parents)[:_DEEPEST]):
        if _is_file(other / name):
            return other
    if folder == folder.parent:
        return None  # the whole machine lies below it
    return next((other for other in _below(folder) if _is_file(other / name)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that is closed to the user
        return False


def _below(folder: Path) -> Iterable[Path]:
    seen = 0
    for place, names, _ in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _LEFT_OUT)
        if len(Path(place).relative_to(folder).parts) >= _DEEPEST:
            names.clear()
        yield from (Path(place) / name for name in names)
        seen += len(names)
        if seen > _MOST_FILES:
            return
