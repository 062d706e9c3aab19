"""A run's checkpoints, read without torch: which there are, which are intact, where a resume goes on.

The files are described in docs/training.md; the entrypoint, which travels without the rest, judges them by the same
rules (``newest_intact`` in its ``checkpoint`` module).
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from slurmgpu.files.trust import read_regular

__all__ = ["Best", "Checkpoint", "EarlyStop", "Manifest", "State", "best_of", "checkpoint_folders", "checkpoints", "damage", "is_done", "newest_complete", "newest_of_tasks", "read_through"]


MANIFEST = "manifest.json"
INDEX = "index.json"
"""Of a folder in a checkpoint, which has those of many ranks."""
_BLOCK = 1 << 22
_LOOKS = 5

State = Literal["complete", "damaged", "torn", "set aside"]
"""complete: the manifest and every part are there, in full length; torn: a save without its manifest."""


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)  # keys of a later version are not fault


class Part(_Read):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


class _Index(_Read):
    """What the ``index.json`` of a folder says."""

    parts: dict[str, Part]


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
        """Whether ``keep_every`` keeps it."""
        every = self.manifest.settings.keep_every if self.manifest else None
        return bool(every) and self.state == "complete" and self.step % (every or 1) == 0


def checkpoint_folders(run_dir: Path) -> dict[str, Path]:
    """The folders of checkpoints in a run directory by the array task they belong to; '' without an array."""
    folders = {"": run_dir / "checkpoints"} if (run_dir / "checkpoints").is_dir() else {}
    tasks = [path for path in run_dir.glob("*/checkpoints") if path.parent.name.isdecimal() and path.is_dir()]
    tasks.sort(key=lambda path: int(path.parent.name))
    return folders | {path.parent.name: path for path in tasks}


def checkpoints(folder: Path) -> list[Checkpoint]:
    """All generations in a folder, newest first; those that are pruned meanwhile are left out."""
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
    """The newest generation that counts, as far as can be told without reading its parts."""
    return next((one for one in found if one.state == "complete"), None)


def newest_of_tasks(run_dir: Path) -> dict[str, Checkpoint]:
    """The newest generation that counts of each array task that has one; under '' without an array."""
    folders = checkpoint_folders(run_dir).items()
    return {name: one for name, folder in folders if (one := newest_complete(checkpoints(folder)))}


def is_done(newest: Checkpoint | None, settings: Mapping[str, Any]) -> bool:
    """Whether a training with these settings (of train.json) has nothing left to do after this checkpoint.

    The entrypoint judges by the same rule (``_finished`` in its ``run`` module).
    """
    manifest = newest.manifest if newest is not None else None
    if newest is None or manifest is None or not manifest.complete or settings.get("resume") is False:
        return False
    if _is_spent(manifest.early_stop, settings.get("early_stop")):
        return True
    most = settings.get("max_steps")
    if most is not None and newest.step >= most:
        return True
    epochs = settings.get("epochs") or (1 if most is None else None)
    if manifest.samples is None or manifest.dataset_samples is None or epochs is None:
        return False
    room = settings["batch_size"] if settings.get("drop_last") else 1
    return bool(manifest.samples + room > epochs * manifest.dataset_samples)


def _is_spent(saved: EarlyStop | None, wanted: Mapping[str, Any] | None) -> bool:
    """Whether a training ends early by these settings."""
    if saved is None or wanted is None:
        return False
    same = (saved.metric, saved.mode) == (wanted["metric"], wanted["mode"])
    return same and saved.since >= wanted["patience"]


def best_of(found: list[Checkpoint]) -> tuple[Best | None, Checkpoint | None]:
    """The best evaluation, as the newest generation that counts has it, and its checkpoint, if that is there."""
    newest = newest_complete(found)
    best = newest.manifest.best if newest and newest.manifest else None
    if best is None:
        return None, None
    return best, next((one for one in found if one.step == best.step and one.state == "complete"), None)


def _look(path: Path, step: int) -> Checkpoint | None:
    """A generation by its manifest and the sizes of its parts; None when it is gone."""
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
    """Whether it is a folder, or one that the file server does not show now: ``Path.is_dir`` would hide that one."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, NotADirectoryError))


_LARGEST_LIST = 256 << 20  # bytes of a manifest or an index, which has a line for each part


def _read(path: Path) -> tuple[Manifest | None, str | None]:
    """The manifest, or what is wrong with it; neither when there is none."""
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
    if manifest.schema_ == "slurmgpu.checkpoint/2" and not _is_as_written(text):
        return None, f"{MANIFEST} differs from its SHA-256"
    if manifest.step is not None and path.name.startswith("step-") and path.name != f"step-{manifest.step}":
        return None, f"{MANIFEST} is of step {manifest.step}"
    try:
        return manifest.model_copy(update={"parts": dict(_listed(path, manifest.parts, ""))}), None
    except ValueError as error:
        return manifest, str(error)


def _listed(path: Path, parts: Mapping[str, Part], folder: str) -> Iterator[tuple[str, Part]]:
    """The files of a checkpoint by their place in it, those of folders by their indexes, which have to be as written."""
    for name, part in parts.items():
        yield folder + name, part
        inner, slash, last = name.rpartition("/")
        if slash and last == INDEX:
            try:
                text = read_regular(path / folder / name, _LARGEST_LIST)
            except OSError as error:
                raise ValueError(f"{folder}{name} cannot be read: {error.strerror}") from None
            if hashlib.sha256(text).hexdigest() != part.sha256:
                raise ValueError(f"{folder}{name} differs from its SHA-256")
            yield from _listed(path, _Index.model_validate_json(text).parts, f"{folder}{inner}/")


def _is_as_written(text: bytes) -> bool:
    """Whether a manifest's last entry is the SHA-256 of the text before it."""
    body, seal, rest = text.rpartition(b',\n "sha256": ')
    return bool(seal) and rest == f'"{hashlib.sha256(body).hexdigest()}"\n}}'.encode()


def _wrong_sizes(path: Path, manifest: Manifest) -> dict[str, str]:
    """What is wrong with a part, by its name, as far as its size tells."""
    wrong = {}
    for name, part in manifest.parts.items():
        file = path / name
        try:
            if not file.is_file():
                wrong[name] = f"{name} is missing"
            elif (size := file.stat().st_size) != part.bytes:
                wrong[name] = f"{name} has {size} bytes instead of {part.bytes}"
        except OSError as error:
            wrong[name] = f"{name} cannot be read: {error.strerror}"
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
            if name not in wrong and (problem := _wrong_content(path / name, part)):
                wrong[name] = name[: -len(Path(name).name)] + problem  # with the folder that it lies in
        problems = list(wrong.values())
        if not problems and checkpoint.problem is not None:
            problems = [checkpoint.problem]  # of an index: what it lists is not known then
    if problems:
        now, unreadable = _read(path)
        if not _is_folder(path) or (unreadable is None and now != manifest):
            return None
    return problems


def read_through(folder: Path, step: int | None = None) -> Iterator[tuple[Checkpoint, list[str]]]:
    """Each generation with all that is wrong with it, newest first; with ``step`` that one, and as many as show where
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


def _wrong_content(file: Path, part: Part) -> str | None:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    return None if digest.hexdigest() == part.sha256 else f"{file.name} differs from its SHA-256"
