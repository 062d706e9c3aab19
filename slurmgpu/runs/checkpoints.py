"""A run's checkpoints, read without torch: which there are, which are intact, where a resume goes on."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.trust import read_regular
from slurmgpu.training.formats.checkpoint import (
    CHECKPOINTS,
    MANIFEST,
    is_finished,
    require_content,
    require_manifest,
    require_size,
    step_of,
)

__all__ = [
    "Best", "Checkpoint", "EarlyStop", "Manifest", "State", "TaskCheckpoints", "best_of", "best_step", "checkpoints",
    "checkpoints_of_run", "damage", "find_intact", "is_done", "newest_complete", "newest_of_tasks", "read_through",
    "require_one", "require_step",
]  # fmt: skip

State = Literal["complete", "damaged", "torn", "set aside"]
"""complete: the manifest and every part are there, in full length; torn: a save without its manifest."""
_LOOKS = 5
_LARGEST_LIST = 16 << 20  # bytes of a manifest, which has a line for each part
_MOST_PARTS = 100_000


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)  # keys of a later version are no fault


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
    """Content of ``manifest.json``; a loop of the user's own leaves out what only a task knows."""

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


class Checkpoint(NamedTuple):
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


class TaskCheckpoints(NamedTuple):
    """The checkpoints of an array's task, newest first, or of a run without tasks."""

    name: str
    """The task's number; '' without an array."""
    folder: Path
    found: list[Checkpoint]

    def facts(self, one: Checkpoint, *, resume: bool) -> dict[str, Any]:
        """Return what is known of one, as JSON holds it: bytes, seconds since 1970, null if not known."""
        known = one.manifest
        best, where = best_of(self.found)
        return {
            "task": self.name or None,
            "step": one.step,
            "state": one.state,
            "problem": one.problem,
            "resume": resume,
            "kept_for_good": one.kept_for_good,
            "best": {"metric": best.metric, "value": best.value} if best and where is one else None,
            "end_of_training": bool(known and known.complete),
            "epoch": known and known.epoch,
            "samples": known and known.samples,
            "time": known and known.time,
            "bytes": one.size,
            "parts": known and len(known.parts),
            "world_size": known and known.world_size,
            "restart": known and known.restart,
            "torch": known and known.torch,
            "path": str(one.path.relative_to(self.folder.parent)),
        }


def checkpoints_of_run(run_dir: Path) -> list[TaskCheckpoints]:
    """Return the checkpoints in a run directory, by the array's task that they belong to."""
    folders = [("", run_dir / CHECKPOINTS)] if (run_dir / CHECKPOINTS).is_dir() else []
    tasks = [
        path for path in run_dir.glob(f"*/{CHECKPOINTS}") if path.parent.name.isdecimal() and path.is_dir()
    ]
    tasks.sort(key=lambda path: int(path.parent.name))
    folders += [(path.parent.name, path) for path in tasks]
    return [TaskCheckpoints(name, folder, checkpoints(folder)) for name, folder in folders]


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


def newest_complete(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the newest generation that counts, as far as can be told without reading its parts."""
    return next((one for one in found if one.state == "complete"), None)


def newest_of_tasks(run_dir: Path) -> dict[str, Checkpoint]:
    """Return the newest generation that counts of each array task that has one; under '' without an array."""
    tasks = checkpoints_of_run(run_dir)
    return {task.name: one for task in tasks if (one := newest_complete(task.found)) is not None}


def is_done(newest: Checkpoint | None, settings: Mapping[str, Any]) -> bool:
    """Return whether a training with these settings (of train.json) has nothing left to do after this checkpoint."""
    manifest = newest.manifest if newest is not None else None
    if manifest is None or settings.get("resume") is False:
        return False
    return is_finished(manifest.model_dump(exclude={"parts"}), settings, settings.get("max_steps"))


def best_of(found: Sequence[Checkpoint]) -> tuple[Best | None, Checkpoint | None]:
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


def _read(path: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest, or what is wrong with it; neither when there is none."""
    try:
        text = read_regular(path / MANIFEST, _LARGEST_LIST)
        document = json.loads(text)
        manifest = Manifest.model_validate(document)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{MANIFEST} cannot be read: {error.strerror}"
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return None, f"{MANIFEST} is not valid: {f'{place}: ' if place else ''}{first['msg']}"
    except (ValueError, RecursionError) as error:
        return None, f"{MANIFEST} is not valid: {error}"
    try:
        require_manifest(document, text, step_of(path))
    except ValueError as error:
        return None, str(error)
    if len(manifest.parts) > _MOST_PARTS:
        return manifest, f"{MANIFEST} lists more than {_MOST_PARTS:,} parts"
    return manifest, None


def _wrong_sizes(path: Path, manifest: Manifest) -> dict[str, str]:
    """Return what is wrong with a part, by its name, as far as its size tells."""
    found = ((name, _trouble(require_size, path, name, part)) for name, part in manifest.parts.items())
    return {name: problem for name, problem in found if problem is not None}


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


def require_one(run_dir: Path, tasks: Sequence[TaskCheckpoints]) -> None:
    """Raise InvalidInput where several tasks of an array have checkpoints."""
    if len(tasks) > 1:
        raise InvalidInput(
            f"{run_dir} is an array, with tasks {', '.join(task.name or '(none)' for task in tasks)}",
            hint=f"name one of them: {run_dir / tasks[-1].name}",
        )


def require_step(run_dir: Path, tasks: Sequence[TaskCheckpoints], step: int) -> None:
    """Raise InvalidInput where there is no checkpoint of this step."""
    there = sorted({one.step for task in tasks for one in task.found}, reverse=True)
    if step not in there:
        raise InvalidInput(
            f"--step {step}: there is no such checkpoint in {run_dir}",
            hint=f"there are those of steps {', '.join(map(str, there))}"
            if there
            else "there is none at all",
        )


def best_step(run_dir: Path, tasks: Sequence[TaskCheckpoints]) -> int:
    """Return the step of the best checkpoint; InvalidInput where none is known, RunFailed where it is gone."""
    require_one(run_dir, tasks)
    found, one = best_of(tasks[0].found) if tasks else (None, None)
    if found is None:
        raise InvalidInput(
            f"--best: no checkpoint in {run_dir} is known as the best one",
            hint="a training keeps its best checkpoint with train.best, say {metric: accuracy, mode: max}",
        )
    if one is None:
        raise RunFailed(
            f"the best checkpoint in {run_dir}, step-{found.step} ({found.metric} {found.value:.6g}), is damaged or gone",
            hint="slurmgpu checkpoint list shows which there are",
        )
    return found.step


def find_intact(
    run_dir: Path, tasks: Sequence[TaskCheckpoints], step: int | None, told: Callable[[str], None]
) -> Checkpoint:
    """Return a checkpoint that is intact, read through: that of the step, else the newest; ``told`` hears what others lack."""
    require_one(run_dir, tasks)
    read: Iterable[tuple[Checkpoint, list[str] | None]] = ()
    if step is not None:
        require_step(run_dir, tasks, step)
        read = ((one, damage(one)) for one in tasks[0].found if one.step == step)
    elif tasks:
        read = read_through(tasks[0].folder)
    for one, problems in read:
        if one.state == "set aside" or problems is None:
            continue
        if not problems:
            return one
        told(f"step-{one.step} is {'torn' if one.state == 'torn' else 'damaged'}: {'; '.join(problems)}")
    raise RunFailed(
        f"there is no intact checkpoint{'' if step is None else f' of step {step}'} in {run_dir}",
        hint="slurmgpu checkpoint list shows which there are",
    )
