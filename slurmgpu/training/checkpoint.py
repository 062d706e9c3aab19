"""Checkpoints that a kill at any moment cannot spoil: ``checkpoints/step-N/`` with parts and a manifest.

Every part is written under a temporary name, synced and renamed; ``manifest.json`` with the size and SHA-256
of each part comes last. A folder without a manifest is a save that did not finish, and counts for nothing.
Nothing here loads a file whose checksum does not hold, and no loading unpickles code (``weights_only``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional, cast

import torch

from .errors import TrainingError

__all__ = ["SCHEMA", "Generation", "newest_intact", "plain", "read", "save", "set_aside", "sweep"]

SCHEMA = "slurmgpu.checkpoint/1"
_MANIFEST = "manifest.json"
_TEMPORARY = ".tmp"


@dataclass(frozen=True)
class Generation:
    """One checkpoint: its folder, and its manifest as plain values."""

    path: Path
    manifest: Mapping[str, Any]


class _Digest:
    """A file that knows the SHA-256 of what was written to it, so that no part is read again to learn it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        written = self._file.write(data)
        self._size += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def facts(self) -> dict[str, Any]:
        return {"bytes": self._size, "sha256": self._sha256.hexdigest()}


def save(
    folder: Path, step: int, parts: Mapping[str, Any], facts: Mapping[str, Any], keep: int
) -> Generation:
    """Write the generation of a step, and then remove all but the newest ``keep``.

    ``parts`` are what ``torch.save`` writes, by file name; ``facts`` go into the manifest.
    """
    path = folder / f"step-{step}"
    if path.exists():
        _remove(path)
    path.mkdir(parents=True)
    entries = {}
    for name, content in parts.items():
        temporary = path / (name + _TEMPORARY)
        with temporary.open("wb") as file:
            digest = _Digest(file)
            torch.save(content, cast("IO[bytes]", digest))  # it only ever writes
            _sync(file)
        temporary.replace(path / name)
        entries[name] = digest.facts()
    _sync_folder(path)
    manifest = {"schema": SCHEMA, "step": step, **facts, "parts": entries}
    temporary = path / (_MANIFEST + _TEMPORARY)
    with temporary.open("wb") as file:
        file.write(json.dumps(manifest, indent=1).encode())
        _sync(file)
    temporary.replace(path / _MANIFEST)
    _sync_folder(path)
    _sync_folder(folder)
    for older in _generations(folder)[keep:]:
        _remove(older)
    return Generation(path, manifest)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _generations(folder: Path) -> list[Path]:
    """The folders with a manifest, newest first."""
    steps = {}
    for path in folder.glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", path.name)
        if match and (path / _MANIFEST).exists():
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps, reverse=True)]


def _remove(path: Path) -> None:
    """Remove a generation, its manifest first: what is left over by a kill is no checkpoint any more."""
    (path / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path)


def sweep(folder: Path) -> None:
    """Remove what a killed save left behind: folders without a manifest, files under temporary names."""
    for path in folder.glob("step-*"):
        if path.is_dir() and not (path / _MANIFEST).exists():
            shutil.rmtree(path)
    for stray in folder.glob(f"step-*/*{_TEMPORARY}"):
        stray.unlink()


def newest_intact(folder: Path) -> tuple[Optional[Generation], list[str]]:
    """The newest generation whose parts are as they were written, and what to say about newer ones.

    Damaged newer ones are set aside under another name, for a person to look at.

    Raises:
        TrainingError: there are checkpoints and none is intact.
    """
    damaged: list[tuple[Path, str]] = []
    for path in _generations(folder):
        try:
            generation = _verified(path)
        except (OSError, ValueError) as error:
            damaged.append((path, str(error)))
            continue
        except (KeyError, TypeError, AttributeError):
            damaged.append((path, f"{_MANIFEST} is incomplete"))
            continue
        notes = [
            f"checkpoint {bad.name} is damaged ({reason}), set aside as {set_aside(bad, 'damaged').name}; "
            f"falling back to {path.name}"
            for bad, reason in damaged
        ]
        return generation, notes
    if damaged:
        listed = "; ".join(f"{path.name}: {reason}" for path, reason in damaged)
        raise TrainingError(
            f"no checkpoint in {folder} is intact ({listed}); "
            "restore one, or move the folder away to start anew"
        )
    return None, []


def _verified(path: Path) -> Generation:
    manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise ValueError(f"{_MANIFEST} is not of schema {SCHEMA}")
    for name, entry in manifest["parts"].items():
        part = path / name
        if not part.is_file():
            raise ValueError(f"{name} is missing")
        size = part.stat().st_size
        if size != entry["bytes"]:
            raise ValueError(f"{name} has {size} bytes instead of {entry['bytes']}")
        if _sha256(part) != entry["sha256"]:
            raise ValueError(f"{name} differs from its SHA-256")
    return Generation(path, manifest)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder to a free name beside it, so that nothing is lost."""
    number = 1
    while (target := path.with_name(f"{why}-{path.name}-{number}")).exists():
        number += 1
    path.rename(target)
    return target


def read(generation: Generation, part: str) -> Any:
    """Load one part to the CPU.

    Raises:
        TrainingError: this rank does not see the file, or it holds more than plain values and tensors.
    """
    path = generation.path / part
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainingError(
            f"{path} is not visible from here: "
            "the run directory must be on a file system that all nodes share"
        ) from None
    except Exception as error:
        raise TrainingError(f"cannot load {path}: {error}") from error


def plain(value: Any, where: str) -> Any:
    """The value made of what ``weights_only`` can read back: found out when saving, not when it is too late.

    Raises:
        TrainingError: something inside is of another kind; the message says where.
    """
    if value is None or isinstance(value, torch.Tensor) or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {key: plain(each, f"{where}[{key!r}]") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain(each, f"{where}[{index}]") for index, each in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if hasattr(value, "item") and not getattr(value, "shape", None):
        return value.item()  # a number of numpy
    raise TrainingError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: "
        "only tensors, numbers, strings, lists, tuples and mappings can be read back safely"
    )
