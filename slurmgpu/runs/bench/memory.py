"""Results of benches of a training: kept in the user's state, and reported to whoever plans it next."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import SlurmGpuError
from slurmgpu.files.jobs import folder_here, load_job
from slurmgpu.files.layered import Layered
from slurmgpu.files.settings import state_folder
from slurmgpu.files.trust import open_regular, write_atomically
from slurmgpu.models.job import Job
from slurmgpu.models.run import Run
from slurmgpu.models.train import TrainSettings
from slurmgpu.runs.bench.results import Results
from slurmgpu.runs.bench.verdict import judge, runs
from slurmgpu.runs.prepared import Prepared

__all__ = [
    "Measured", "key_of", "key_of_training", "measured_before", "measured_of_run", "recall", "remember",
    "remember_verdict",
]  # fmt: skip

_SCHEMA, _MOST, _LARGEST = "slurmgpu.measured/1", 200, 4 << 20


class Measured(NamedTuple):
    """The result of one bench of a training."""

    device: str
    """The GPU's name, or the CPU's model where it has none."""
    when: str
    """The day, as the bench's own clock had it."""
    proposals: tuple[str, ...]
    """As in a job file: ``train.workers: 4``."""
    folder: str
    parts: tuple[str, ...] = ()
    """The parts that were tried: of the rest, nothing is known."""


def key_of(train: TrainSettings, folder: Path, cluster: str) -> str:
    """Return the key of a training: a digest of its task, the task's configuration, and the cluster."""
    task = train.task if train.task.startswith("slurmgpu:") else str(folder / train.task)
    config = json.dumps(train.model_dump(mode="json")["config"], sort_keys=True)
    return hashlib.sha256("\0".join((task, config, cluster)).encode()).hexdigest()[:32]


def key_of_training(prepared: Prepared, job: Job | None = None) -> str | None:
    """Return the key of a job's training, or of ``job``, where another is submitted; None where nothing trains."""
    train = (job or prepared.loaded.job).train
    return None if train is None else key_of(train, prepared.folder or Path.cwd(), prepared.cluster.name)


def remember(key: str, found: Measured, environ: Mapping[str, str]) -> None:
    """Keep a result, if possible, in place of those on the same kind of processor that tried no more."""
    path = state_folder(environ) / "measured.json"
    kept = [
        {"key": other, **one._asdict()}
        for other, one in _read(path)
        if (other, one.device) != (key, found.device) or not set(one.parts) <= set(found.parts)
    ]
    kept.append({"key": key, **found._asdict()})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"schema": _SCHEMA, "found": kept[-_MOST:]}, indent=1) + "\n")


def recall(key: str, environ: Mapping[str, str]) -> list[Measured]:
    """Return the results that are kept of a training, the newest last."""
    return [one for other, one in _read(state_folder(environ) / "measured.json") if other == key]


def _read(path: Path) -> Sequence[tuple[str, Measured]]:
    """Return the entries that are whole; none of a file that is missing, damaged, or of another version."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return []  # where the state is kept in /tmp, anybody may have written it
            document = json.loads(file.read(_LARGEST))
        found: list[Any] = document["found"] if document["schema"] == _SCHEMA else []
        return [entry for one in found for entry in _entries(one)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _entries(one: Any) -> Iterator[tuple[str, Measured]]:
    names = ("key", "device", "when", "proposals", "folder")
    if isinstance(one, dict) and all(name in one for name in names) and isinstance(one["proposals"], list):
        parts = one.get("parts")
        parts = tuple(map(str, parts)) if isinstance(parts, list) else ()
        found = Measured(one["device"], one["when"], tuple(one["proposals"]), one["folder"], parts)
        yield one["key"], found


def remember_verdict(key: str | None, results: Results, folder: Path) -> None:
    """Keep what follows from a bench that came to its end."""
    if key is None or not results.whole or not runs(results):
        return
    machine = results.machine
    found = Measured(
        device=next((str(one.get("name")) for one in results.gpus), str(machine.get("cpu") or "CPU")),
        when=str(machine.get("when"))[:10],
        proposals=tuple(f"{one.key}: {one.value}" for one in judge(results).proposals),
        folder=str(folder.absolute()),
        parts=tuple(dict.fromkeys(str(row.get("what")) for row in results.rows if row.get("what") != "base")),
    )
    remember(key, found, os.environ)


def measured_before(prepared: Prepared) -> Iterator[str]:
    """Yield a sentence for each kind of processor on which the job's training was measured."""
    key = key_of_training(prepared)
    yield from _in_words(key) if key is not None else ()


def measured_of_run(run: Run) -> Iterator[str]:
    """Yield the same of the training of a run, as far as its folder tells what that was."""
    path, cwd = Path(run.run_dir), Path.cwd()
    try:
        loaded = load_job(path / "job.yaml", Layered({}, {}), cwd=cwd, environ=os.environ, unnamed=True)
        profile = json.loads((path / "plan.json").read_text(encoding="utf-8"))["cluster"]
    except (SlurmGpuError, OSError, ValueError, KeyError, TypeError):
        return
    folder = folder_here(loaded.work_dir, cwd)
    if loaded.job.train is not None and folder is not None:
        yield from _in_words(key_of(loaded.job.train, folder, str(profile)))


def _in_words(key: str) -> Iterator[str]:
    for one in recall(key, os.environ):
        what = ", ".join(one.proposals) or "nothing to change"
        of = ", ".join(one.parts)
        yield f"measured on {one.device} ({one.when}{of and f', {of}'}): {what} ({one.folder})"
