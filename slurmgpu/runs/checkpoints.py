"""A run's checkpoints, read without torch: which there are, which are intact, where a resume goes on."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slurmgpu.files.trust import read_regular
from slurmgpu.training.formats.checkpoint import (
    CHECKPOINTS,
    MANIFEST,
    is_finished,
    read_manifest,
    require_content,
    require_size,
    step_of,
)

__all__ = [
    "Best",
    "Checkpoint",
    "EarlyStop",
    "Manifest",
    "State",
    "best_of",
    "checkpoint_folders",
    "checkpoints",
    "damage",
    "is_done",
    "newest_complete",
    "newest_of_tasks",
    "read_through",
]


_LOOKS = 5

State = Literal["complete", "damaged", "torn", "set aside"]
"""complete: the manifest and every part are there, in full length; torn: a save without its manifest."""


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)  # keys of a later version are not fault


class Part(_Read):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


class Best(_Read):
    """The best evaluation so far, by the metric that the settings name."""

    metric: str
    mode: str
    step: int
    value: float


class EarlyStop(_Read):
    """The last evaluation that was better, and the number of those since; no value where none was finite."""

    metric: str
    mode: str
    step: int
    value: float | None
    since: int


class _Settings(_Read):
    keep_every: int | None = None


class Manifest(_Read):
    """What ``manifest.json`` says; a loop of the user's own leaves out what only a task knows."""

    schema_: Literal["slurmgpu.checkpoint/1", "slurmgpu.checkpoint/2"] = Field(alias="schema")
    sha256: str | None = None
    """Of the text before it; earlier versions have none."""
    parts: dict[str, Part]
    step: int | None = None
    samples: int | None = None
    dataset_samples: int | None = None
    epoch: int | None = None
    time: float | None = None
    restart: int | None = None
    world_size: int | None = None
    torch: str | None = None
    complete: bool = False
    best: Best | None = None
    early_stop: EarlyStop | None = None
    settings: _Settings = _Settings()


@dataclass(frozen=True)
class Checkpoint:
    """One generation: its folder and what can be told of it without reading its parts."""

    path: Path
    step: int
    state: State
    manifest: Manifest | None = None
    problem: str | None = None

    @property
    def size(self) -> int | None:
        """Bytes of all parts, as the manifest has them."""
        return None if self.manifest is None else sum(part.bytes for part in self.manifest.parts.values())

    @property
    def kept_for_good(self) -> bool:
        """True if ``keep_every`` keeps it."""
        every = self.manifest.settings.keep_every if self.manifest else None
        return bool(every) and self.state == "complete" and self.step % (every or 1) == 0


def checkpoint_folders(run_dir: Path) -> dict[str, Path]:
    """Return the folders of checkpoints in a run directory by the array task they belong to; '' without an array."""
    folders = {"": run_dir / CHECKPOINTS} if (run_dir / CHECKPOINTS).is_dir() else {}
    tasks = [path for path in run_dir.glob("*/checkpoints") if path.parent.name.isdecimal() and path.is_dir()]
    tasks.sort(key=lambda path: int(path.parent.name))
    return folders | {path.parent.name: path for path in tasks}


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all generations in a folder, newest first; those that are pruned meanwhile are left out."""
    found = []
    for path in folder.iterdir():
        match = re.fullmatch(r"((?:\w+-)?)step-(\d+)((?:-\d+)?)", path.name, re.ASCII)
        if match is None or bool(match[1]) != bool(match[3]) or not _is_folder(path):
            continue
        step = int(match[2])
        if match[1]:
            found.append(Checkpoint(path, step, "set aside", problem=f"{match[1].rstrip('-')} when resumed"))
        elif one := _look(path, step):
            found.append(one)
    return sorted(found, key=lambda one: (one.step, one.path.name), reverse=True)


def newest_complete(found: list[Checkpoint]) -> Checkpoint | None:
    """Return the newest generation that counts, as far as can be told without reading its parts."""
    return next((one for one in found if one.state == "complete"), None)


def newest_of_tasks(run_dir: Path) -> dict[str, Checkpoint]:
    """Return the newest generation that counts of each array task that has one; under '' without an array."""
    folders = checkpoint_folders(run_dir).items()
    return {name: one for name, folder in folders if (one := newest_complete(checkpoints(folder)))}


def is_done(newest: Checkpoint | None, settings: Mapping[str, Any]) -> bool:
    """Return whether a training with these settings (of train.json) has nothing left to do after this checkpoint."""
    manifest = newest.manifest if newest is not None else None
    if manifest is None or settings.get("resume") is False:
        return False
    return is_finished(manifest.model_dump(exclude={"parts"}), settings, settings.get("max_steps"))


def best_of(found: list[Checkpoint]) -> tuple[Best | None, Checkpoint | None]:
    """Return the best evaluation, as the newest generation that counts has it, and its checkpoint, if that is there."""
    newest = newest_complete(found)
    best = newest.manifest.best if newest and newest.manifest else None
    if best is None:
        return None, None
    return best, next((one for one in found if one.step == best.step and one.state == "complete"), None)


def _look(path: Path, step: int) -> Checkpoint | None:
    """Return a generation by its manifest and the sizes of its parts; None when it is gone."""
    manifest, problem = _read(path)
    if manifest is None and problem is None:
        torn = "no manifest: a save cut off, or under way"
        return Checkpoint(path, step, "torn", problem=torn) if _is_folder(path) else None
    if manifest is not None and problem is None:
        problem = next(iter(_wrong_sizes(path, manifest).values()), None)
    if problem is None:
        return Checkpoint(path, step, "complete", manifest)
    if _read(path) == (None, None):
        return None  # its parts went while they were looked at
    return Checkpoint(path, step, "damaged", manifest, problem)


def _is_folder(path: Path) -> bool:
    """Return True if it is a folder, or one that the file server does not show now: ``Path.is_dir`` would hide that one."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, NotADirectoryError))


_LARGEST_LIST = 16 << 20  # bytes of a manifest, which has a line for each part
_MOST_PARTS = 100_000


def _read(path: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest, or what is wrong with it; neither when there is none."""
    try:
        text = read_regular(path / MANIFEST, _LARGEST_LIST)
        manifest = Manifest.model_validate_json(text)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{MANIFEST} cannot be read: {error.strerror}"
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return None, f"{MANIFEST} is not valid: {f'{place}: ' if place else ''}{first['msg']}"
    try:
        read_manifest(text, step_of(path))
    except ValueError as error:
        return None, str(error)
    if len(manifest.parts) > _MOST_PARTS:
        return manifest, f"{MANIFEST} lists more than {_MOST_PARTS:,} parts"
    return manifest, None


def _wrong_sizes(path: Path, manifest: Manifest) -> dict[str, str]:
    """Return what is wrong with a part, by its name, as far as its size tells."""
    wrong = {}
    for name, part in manifest.parts.items():
        if (problem := _trouble(require_size, path, name, part)) is not None:
            wrong[name] = problem
    return wrong


def damage(checkpoint: Checkpoint) -> list[str] | None:
    """Read every part of a generation, block by block: what is wrong with it; None when it is no longer there.

    A training prunes and saves meanwhile: what is missing because of it is not damage.
    """
    path, manifest = checkpoint.path, checkpoint.manifest
    if manifest is None:
        problems = [checkpoint.problem or "no manifest"]
    else:
        wrong = _wrong_sizes(path, manifest)
        for name, part in manifest.parts.items():
            if name not in wrong and (problem := _trouble(require_content, path, name, part)):
                wrong[name] = problem
        problems = list(wrong.values())
        if not problems and checkpoint.problem is not None:
            problems = [checkpoint.problem]  # of an index: what it lists is not known then
    if problems:
        now, unreadable = _read(path)
        if not _is_folder(path) or (unreadable is None and now != manifest):
            return None
    return problems


def read_through(folder: Path, step: int | None = None) -> Iterator[tuple[Checkpoint, list[str]]]:
    """Yield each generation with all that is wrong with it, newest first; with ``step`` that one, and as many as show where
    a resume goes on.

    Those that are pruned meanwhile are left out. When none was left, those that came in their place follow.
    """
    seen: set[Path] = set()
    intact = False
    for _ in range(_LOOKS):
        gone = False
        for one in checkpoints(folder):
            counts = one.state in {"complete", "damaged"}
            if one.path in seen or not (step in {None, one.step} or (counts and not intact)):
                continue
            seen.add(one.path)
            problems = damage(one) if counts else [one.problem or ""]
            if problems is None:
                gone = True
                continue
            intact = intact or not problems
            yield one, problems
        if intact or not gone:
            return


def _trouble(
    require: Callable[[Path, str, Mapping[str, Any]], None], path: Path, name: str, part: Part
) -> str | None:
    """Return what a part lacks of what is required of it."""
    try:
        require(path, name, {"bytes": part.bytes, "sha256": part.sha256})
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return None
