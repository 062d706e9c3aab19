"""What benches found of a training, kept, and told to whoever plans it next."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmgpu.errors import SlurmGpuError
from slurmgpu.files.jobs import folder_here, load_job
from slurmgpu.files.layered import Layered
from slurmgpu.files.settings import Measured, key_of, recall, remember
from slurmgpu.models.job import Job
from slurmgpu.models.run import Run
from slurmgpu.runs.bench.results import Results
from slurmgpu.runs.bench.verdict import judge, runs
from slurmgpu.runs.prepare import Prepared


def key_of_training(prepared: Prepared, job: Job | None = None) -> str | None:
    """What its training is known by; ``job`` is the one that trains, where another is submitted. None where nothing trains."""
    train = (job or prepared.loaded.job).train
    return None if train is None else key_of(train, prepared.folder or Path.cwd(), prepared.cluster.name)


def remember_verdict(key: str | None, results: Results, folder: Path) -> None:
    """Keep what follows from a bench that came to its end."""
    if key is None or not results.whole or not runs(results):
        return
    machine = results.machine
    gpus = machine.get("gpus")
    names = (
        [str(one.get("name")) for one in gpus if isinstance(one, Mapping)] if isinstance(gpus, list) else []
    )
    found = Measured(
        device=names[0] if names else str(machine.get("cpu") or "CPU"),
        when=str(machine.get("when"))[:10],
        proposals=tuple(f"{one.key}: {one.value}" for one in judge(results).proposals),
        folder=str(folder.absolute()),
        parts=tuple(dict.fromkeys(str(row.get("what")) for row in results.rows if row.get("what") != "base")),
    )
    remember(key, found, os.environ)


def told_by_benches(prepared: Prepared) -> Iterator[str]:
    """Yield a sentence for each kind of processor on which the job's training was measured."""
    key = key_of_training(prepared)
    yield from _told(key) if key is not None else ()


def told_of_run(run: Run) -> Iterator[str]:
    """Yield the same of the training of a run, as far as its folder tells what that was."""
    path = Path(run.run_dir)
    try:
        loaded = load_job(
            path / "job.yaml", Layered({}, {}), cwd=Path.cwd(), environ=os.environ, unnamed=True
        )
        profile = json.loads((path / "plan.json").read_text(encoding="utf-8"))["cluster"]
    except (SlurmGpuError, OSError, ValueError, KeyError, TypeError):
        return
    folder = folder_here(loaded.work_dir, Path.cwd())
    if loaded.job.train is not None and folder is not None:
        yield from _told(key_of(loaded.job.train, folder, str(profile)))


def _told(key: str) -> Iterator[str]:
    for one in recall(key, os.environ):
        what = ", ".join(one.proposals) or "nothing to change"
        of = ", ".join(one.parts)
        yield f"measured on {one.device} ({one.when}{of and f', {of}'}): {what} ({one.folder})"
