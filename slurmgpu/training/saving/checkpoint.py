"""Checkpoints that a kill at any moment cannot spoil: ``checkpoints/step-N/`` with parts and a manifest.

Every part is written under a temporary name, synced and renamed; ``manifest.json`` with the size and SHA-256
of each part, and of itself, comes last. A folder without a manifest is a save that did not finish, and counts for nothing.
Nothing here loads a file whose checksum does not hold, and no loading unpickles code (``weights_only``).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional, cast

import torch

from ..errors import TrainingError
from ..files import (
    TEMPORARY,
    Facts,
    free_name,
    is_there,
    patiently,
    read_json,
    sha256,
    sync_folder,
    write_whole,
)
from ..processes.group import Group
from ..processes.ranks import Ranks

__all__ = [
    "Generation",
    "commit",
    "counts",
    "folders",
    "newest_intact",
    "prune",
    "read",
    "require",
    "sweep",
    "write_part",
]

SCHEMA = "slurmgpu.checkpoint/2"
_UNSEALED = "slurmgpu.checkpoint/1"  # of earlier versions: without a checksum of the manifest
_SEAL = ',\n "sha256": '
_NUMBERS = {"step": 0, "samples": 0, "world_size": 1}  # what each manifest says, with the least value
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Generation:
    """One checkpoint: its folder, and its manifest as plain values."""

    path: Path
    manifest: Mapping[str, Any]


def write_part(path: Path, name: str, content: object) -> Facts:
    """Write one part of the generation in folder ``path`` with ``torch.save``; its size and SHA-256."""
    path.mkdir(parents=True, exist_ok=True)
    facts = write_whole(path / name, lambda file: torch.save(content, cast("IO[bytes]", file)))
    sync_folder(path)
    return facts


def commit(folder: Path, step: int, parts: Mapping[str, Facts], facts: Mapping[str, object]) -> Generation:
    """Write the manifest of a step whose parts are all there; from now on the generation counts."""
    path = folder / f"step-{step}"
    manifest = {"schema": SCHEMA, "step": step, **facts, "parts": dict(parts)}
    text = _sealed(json.dumps(manifest, indent=1)[: -len("\n}")].encode())
    write_whole(path / _MANIFEST, lambda file: file.write(text))
    sync_folder(path)
    sync_folder(folder)
    return Generation(path, manifest)


def _sealed(body: bytes) -> bytes:
    """The text of a manifest whose last entry is the SHA-256 of what stands before it."""
    return body + f'{_SEAL}"{hashlib.sha256(body).hexdigest()}"\n}}'.encode()


def _unsealed(text: bytes) -> dict[str, Any]:
    """What a manifest says, if its text is as it was written."""
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{_MANIFEST} cannot be read: {error}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema not in (SCHEMA, _UNSEALED):
        raise ValueError(f"{_MANIFEST} is not of schema {SCHEMA}")
    if schema == SCHEMA and text != _sealed(text.rpartition(_SEAL.encode())[0]):
        raise ValueError(f"{_MANIFEST} differs from its SHA-256")
    return {name: value for name, value in manifest.items() if name not in ("schema", "sha256")}


def prune(folder: Path, keep: int, keep_every: Optional[int]) -> None:
    """Remove all generations but the newest ``keep``, those that these call the best, and those that ``keep_every`` divides."""
    generations = _generations(folder)
    # Of each that stays: should the newest be damaged, the one before it is gone on from, with its best one.
    best = {_best(path) for path in generations[:keep]} if generations[keep:] else set()
    for path in generations[keep:]:
        step = int(path.name.partition("-")[2])
        if step not in best and (not keep_every or step % keep_every):
            remove(path)


def _best(path: Path) -> Optional[int]:
    """The step of the best generation, as the manifest of this one has it."""
    best = read_json(path / _MANIFEST).get("best")
    return best.get("step") if isinstance(best, dict) else None


def _generations(folder: Path) -> list[Path]:
    """The folders with a manifest, newest first."""
    steps = {}
    for path in folders(folder):
        match = re.fullmatch(r"step-(\d+)", path.name)
        if match and counts(path):
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps, reverse=True)]


def folders(folder: Path) -> list[Path]:
    """All folders named as a generation, complete or not.

    Not by ``glob``: it takes a folder that cannot be listed for an empty one, and the training would start over.
    """
    return [path for path in patiently(partial(_entries, folder)) if path.name.startswith("step-")]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def counts(path: Path) -> bool:
    """Whether a generation counts; raises where that is unclear, because a wrong no would lose a good one."""
    return patiently(partial(is_there, path / _MANIFEST))


def remove(path: Path) -> None:
    """Remove a generation, its manifest first: what a kill leaves over is not a checkpoint.

    Of a link, the link alone: where it leads, somebody keeps what is there.
    """
    if path.is_symlink():
        path.unlink()
        return
    (path / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path)


def sweep(folder: Path) -> None:
    """Remove what a killed save left behind: folders without a manifest, files under temporary names; no links."""
    for path in folders(folder):
        if path.is_symlink():
            continue  # no save has made it: what lies behind it is somebody else's, and may be away for a while
        if path.is_dir() and not counts(path):
            shutil.rmtree(path)
        for stray in path.glob(f"*{TEMPORARY}"):
            stray.unlink()


def newest_intact(folder: Path, group: Optional[Group] = None) -> tuple[Optional[Generation], list[str]]:
    """The newest generation whose parts are as they were written, and what to say about newer ones.

    All ranks look together (None: this process alone): rank 0 reads the manifests, and each reads its share of the parts.
    Damaged newer ones are set aside under another name, for a person to look at. What cannot be read is tried
    again for a while first: a file server may be away for some seconds.

    Raises:
        TrainingError: on every rank, where there are checkpoints and none is intact, or this user may not read one.
    """
    group = group or Group(Ranks(), torch.device("cpu"))
    damaged: list[tuple[Path, str]] = []
    for path in group.on_first(lambda: _generations(folder)):
        generation, trouble = group.on_first(partial(_tried, partial(_opened, path)))
        if generation is not None:
            look = partial(_look, generation, group.ranks)
            troubles = [found for _, found in group.gather(_tried(look))]
            trouble = next(filter(None, troubles), None)
        if trouble is not None and trouble.denied:
            raise TrainingError(
                f"cannot read the checkpoint {path.name} ({trouble.reason}); nothing has been changed: let this user read "
                "it, or move it away to go on from an older one"
            )
        if trouble is None:
            return generation, group.on_first(partial(_fall_back, damaged, path))
        damaged.append((path, trouble.reason))
    if damaged:
        listed = "; ".join(f"{path.name}: {reason}" for path, reason in damaged)
        raise TrainingError(
            f"no checkpoint in {folder} is intact ({listed}); "
            "restore one, or move the folder away to start anew"
        )
    return None, []


class _Trouble(NamedTuple):
    """Why a generation cannot be gone on from; ``denied``: this user may not read it."""

    reason: str
    denied: bool = False


def _tried(
    act: Callable[[], Optional[Generation]],
) -> tuple[Optional[Generation], Optional[_Trouble]]:
    """What ``act`` gives, tried again for a while, or the trouble with it."""
    try:
        return patiently(act), None
    except PermissionError as error:
        return None, _Trouble(str(error), denied=True)
    except (OSError, ValueError) as error:
        return None, _Trouble(str(error))
    except (KeyError, TypeError, AttributeError):
        return None, _Trouble(f"{_MANIFEST} is incomplete")


def _fall_back(damaged: list[tuple[Path, str]], to: Path) -> list[str]:
    """Set damaged generations aside; what to say of them."""
    return [
        f"checkpoint {bad.name} is damaged ({reason}), set aside as {set_aside(bad, 'damaged').name}; "
        f"falling back to {to.name}"
        for bad, reason in damaged
    ]


def _opened(path: Path) -> Generation:
    """A generation whose manifest is as it was written."""
    manifest = _unsealed((path / _MANIFEST).read_bytes())
    for name, least in _NUMBERS.items():
        value = manifest.get(name)
        if type(value) is not int or value < least:
            raise ValueError(f"{_MANIFEST}: {name} is {value!r}")
    if path.name != f"step-{manifest['step']}":
        raise ValueError(f"{_MANIFEST} is of step {manifest['step']}")
    if not all(entry["bytes"] >= 0 and entry["sha256"] for entry in manifest["parts"].values()):
        raise ValueError(f"{_MANIFEST} says nothing of a part")
    return Generation(path, manifest)


def _look(generation: Generation, ranks: Ranks) -> None:
    """Read this rank's share of the parts through: its own, as far as there are as many ranks as there were.

    Raises:
        ValueError: one of them is not as it was written.
    """
    path = generation.path
    for place, (name, entry) in enumerate(generation.manifest["parts"].items()):
        own = re.fullmatch(r"(?:rank|shard)-(\d+)\.pt", name)
        if (int(own[1]) if own else place) % ranks.world_size != ranks.rank:
            continue
        part = path / name
        try:
            size = part.stat().st_size
        except FileNotFoundError:
            raise ValueError(f"{name} is missing") from None
        if size != entry["bytes"]:
            raise ValueError(f"{name} has {size} bytes instead of {entry['bytes']}")
        if sha256(part) != entry["sha256"]:
            raise ValueError(f"{name} differs from its SHA-256")


def require(generation: Generation, *names: str) -> None:
    """Refuse a checkpoint whose manifest lacks one of the names: it is of a loop of another kind."""
    missing = [name for name in names if name not in generation.manifest]
    if missing:
        raise TrainingError(
            f"{generation.path} says nothing of {', '.join(missing)}: it was not saved by a training of this kind; "
            "use another run directory, or move its checkpoints away to start anew"
        )


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder to a free name beside it, so that nothing is lost."""
    return path.rename(free_name(path.with_name(f"{why}-{path.name}")))


def read(generation: Generation, part: str) -> dict[str, Any]:
    """Load one part to the CPU.

    Raises:
        TrainingError: this rank does not see the file, or it holds more than plain values and tensors.
    """
    path = generation.path / part
    try:
        with warnings.catch_warnings():
            # Of what its own reading does, torch 2.1 warns, and 2.14 where a tensor is sparse.
            for said in ("TypedStorage is deprecated", "Validating sparse tensor invariants"):
                warnings.filterwarnings("ignore", said, UserWarning)
            values: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainingError(
            f"{path} is not visible from here: "
            "the run directory must be on a file system that all nodes share"
        ) from None
    except Exception as error:
        raise TrainingError(f"cannot load {path}: {error}") from error
    return values
