"""Checkpoints that a kill at any moment cannot spoil: ``checkpoints/step-N/`` with parts and a manifest.

Every part is written under a temporary name, synced and renamed; ``manifest.json`` with the size and SHA-256
of each part, and of itself, comes last. A folder without a manifest is a save that did not finish, and counts for nothing.
Nothing here loads a file whose checksum does not hold, and no loading unpickles code (``weights_only``).
"""

from __future__ import annotations

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
    sync_folder,
    write_whole,
)
from ..formats.checkpoint import (
    CHECKPOINT_SCHEMA,
    MANIFEST,
    read_manifest,
    require_content,
    require_size,
    sealed,
    step_folder,
    step_of,
)
from ..processes.group import Group
from ..processes.ranks import Ranks

__all__ = [
    "Generation",
    "commit",
    "counts",
    "folders",
    "newest",
    "newest_intact",
    "prune",
    "read",
    "require",
    "sweep",
    "write_part",
]


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
    path = step_folder(folder, step)
    manifest = {"schema": CHECKPOINT_SCHEMA, "step": step, **facts, "parts": dict(parts)}
    text = sealed(manifest)
    write_whole(path / MANIFEST, lambda file: file.write(text))
    sync_folder(path)
    sync_folder(folder)
    return Generation(path, manifest)


def remove_generation(path: Path) -> None:
    """Remove a generation, its manifest first: what a kill leaves over is not a checkpoint.

    Of a link, the link alone: where it leads, somebody keeps what is there.
    """
    if path.is_symlink():
        path.unlink()
        return
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path)


def prune(folder: Path, keep: int, keep_every: Optional[int]) -> None:
    """Remove all generations but the newest ``keep``, those that these call the best, and those that ``keep_every`` divides."""
    generations = _generations(folder)
    # Of each that stays: should the newest be damaged, the one before it is gone on from, with its best one.
    best = {_best(path) for path in generations[:keep]} if generations[keep:] else set()
    for path in generations[keep:]:
        step = step_of(path)
        assert step is not None
        if step not in best and (not keep_every or step % keep_every):
            remove_generation(path)


def _best(path: Path) -> Optional[int]:
    """Return the step of the best generation, as the manifest of this one has it."""
    best = read_json(path / MANIFEST).get("best")
    return best.get("step") if isinstance(best, dict) else None


def _generations(folder: Path) -> list[Path]:
    """Return the folders with a manifest, newest first."""
    steps = {}
    for path in folders(folder):
        if (step := step_of(path)) is not None and counts(path):
            steps[step] = path
    return [steps[step] for step in sorted(steps, reverse=True)]


def newest(folder: Path) -> int:
    """Return the step of the newest generation, whole or not; 0 without any."""
    found = _generations(folder)
    return (step_of(found[0]) or 0) if found else 0


def folders(folder: Path) -> list[Path]:
    """Return all folders named as a generation, complete or not.

    Not by ``glob``: it takes a folder that cannot be listed for an empty one, and the training would start over.
    """
    return [path for path in patiently(partial(_entries, folder)) if path.name.startswith("step-")]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def counts(path: Path) -> bool:
    """Return True if a generation counts; raises where that is unclear, because a wrong no would lose a good one."""
    return patiently(partial(is_there, path / MANIFEST))


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
    """Return the newest generation whose parts are as they were written, and what to say about newer ones.

    All ranks look together (None: this process alone): rank 0 reads the manifests, and each reads its share of the parts.
    Damaged newer ones are set aside under another name, for a person to look at. What cannot be read is tried
    again for a while first: a file server may be away for some seconds.

    Raises:
        TrainingError: on every rank, where there are checkpoints and none is intact, or this user may not read one.
    """
    group = group or Group(Ranks(), torch.device("cpu"))
    damaged: list[tuple[Path, str]] = []
    generations, first_node = group.on_first(lambda: (_generations(folder), group.ranks.local_world_size))
    for path in generations:
        generation, trouble = group.on_first(partial(_tried, partial(_opened, path)))
        if generation is not None:
            _, own = _tried(partial(_look, generation, group.ranks, first_node))
            trouble = group.first_of(own)
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
    """Return what ``act`` gives, tried again for a while, or the trouble with it."""
    try:
        return patiently(act), None
    except PermissionError as error:
        return None, _Trouble(str(error), denied=True)
    except (OSError, ValueError) as error:
        return None, _Trouble(str(error))
    except (KeyError, TypeError, AttributeError):
        return None, _Trouble(f"{MANIFEST} is incomplete")


def _fall_back(damaged: list[tuple[Path, str]], to: Path) -> list[str]:
    """Set damaged generations aside; what to say of them."""
    return [
        f"checkpoint {bad.name} is damaged ({reason}), set aside as {set_aside(bad, 'damaged').name}; "
        f"falling back to {to.name}"
        for bad, reason in damaged
    ]


def _opened(path: Path) -> Generation:
    """Return a generation whose manifest is as it was written."""
    return Generation(path, read_manifest((path / MANIFEST).read_bytes(), step_of(path)))


def _look(generation: Generation, ranks: Ranks, first_node: int) -> None:
    """Read this rank's share of the parts through: its own, as far as there are as many ranks as there were.

    What all have in common, the first ranks share, as many as ``first_node``, the first node's: it is read again there alone.

    Raises:
        ValueError: one of them is not as it was written.
    """
    path, parts = generation.path, generation.manifest["parts"]
    common = [name for name in parts if _own_rank(name) is None]
    for name in common[ranks.rank :: first_node] if ranks.rank < first_node else ():
        _require_as_written(path, name, parts[name])
    for name, entry in parts.items():
        of = _own_rank(name)
        if of is not None and of % ranks.world_size == ranks.rank:
            _require_as_written(path, name, entry)


def _own_rank(name: str) -> Optional[int]:
    """Return the rank whose own a part is by its name."""
    match = re.fullmatch(r"(?:rank|shard)-(\d+)\.pt", name)
    return int(match[1]) if match else None


def _require_as_written(path: Path, name: str, entry: Facts) -> None:
    require_size(path, name, entry)
    require_content(path, name, entry)


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
