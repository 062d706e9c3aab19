"""What benches found of trainings, remembered for each cluster and kind of processor: for whoever plans them next."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.files.regular import open_regular
from slurmgpu.files.run_record import write_atomically
from slurmgpu.files.state import state_folder
from slurmgpu.models.train import TrainSettings

__all__ = ["Measured", "key_of", "recall", "remember"]

_SCHEMA = "slurmgpu.measured/1"
_MOST = 200
_LARGEST = 4 << 20


class Measured(NamedTuple):
    """What one bench of a training found."""

    device: str
    """The GPU's name, or the CPU's model where it has none."""
    when: str
    """The day, as the bench's own clock had it."""
    proposals: tuple[str, ...]
    """As they would stand in a job file: ``train.workers: 4``."""
    folder: str
    parts: tuple[str, ...] = ()
    """What was tried: of the rest, nothing is known."""


def key_of(train: TrainSettings, folder: Path, cluster: str) -> str:
    """What a training is known by: its task, what the task reads of the job file, and the cluster."""
    task = train.task if train.task.startswith("slurmgpu:") else str(folder / train.task)
    config = json.dumps(train.model_dump(mode="json")["config"], sort_keys=True)
    return hashlib.sha256("\0".join((task, config, cluster)).encode()).hexdigest()[:32]


def remember(key: str, found: Measured, environ: Mapping[str, str]) -> None:
    """Keep it, in place of those on the same kind of processor that tried no more; the oldest give way.

    What cannot be kept is not.
    """
    path = _path(environ)
    kept = [
        one
        for one in _read(path)
        if (one["key"], one["device"]) != (key, found.device) or not set(_parts(one)) <= set(found.parts)
    ]
    kept.append({"key": key, **found._asdict()})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"schema": _SCHEMA, "found": kept[-_MOST:]}, indent=1) + "\n")


def recall(key: str, environ: Mapping[str, str]) -> list[Measured]:
    """What is remembered of a training, the newest last."""
    return [
        Measured(one["device"], one["when"], tuple(one["proposals"]), one["folder"], _parts(one))
        for one in _read(_path(environ))
        if one["key"] == key
    ]


def _parts(one: Mapping[str, object]) -> tuple[str, ...]:
    found = one.get("parts")
    return tuple(str(each) for each in found) if isinstance(found, list) else ()


def _path(environ: Mapping[str, str]) -> Path:
    return state_folder(environ) / "measured.json"


def _read(path: Path) -> Sequence[dict[str, str]]:
    """The entries that are whole; none of a file that is missing, damaged, or of another version."""
    try:
        with open_regular(path) as file:
            document = json.loads(file.read(_LARGEST))
        found = document["found"] if document["schema"] == _SCHEMA else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    names = ("key", "device", "when", "proposals", "folder")
    return [
        one
        for one in found
        if isinstance(one, dict) and all(name in one for name in names) and isinstance(one["proposals"], list)
    ]
