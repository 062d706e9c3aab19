"""The job of a training that is named on the command line, as this machine runs it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Protocol

from slurmgpu.cli.preparing import put_any
from slurmgpu.errors import InvalidInput
from slurmgpu.files.jobs import find_job_file, load_job
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.runs.prepare import Prepared, plan_here

__all__ = ["described", "planned"]


class _Described(Protocol):
    """How a training is named on the command line."""

    @property
    def what(self) -> str: ...

    @property
    def config(self) -> tuple[str, ...]: ...

    @property
    def sets(self) -> tuple[str, ...]: ...

    @property
    def cluster(self) -> str | None: ...


def planned(asked: _Described, layer: Layered, gpus: int) -> Prepared:
    """The job, in its environment on the cluster; what else the cluster wants does not matter on this machine."""
    what = asked.what
    is_task = _is_task(what)

    def put(key: str, value: object, origin: str) -> None:
        layer.put(tuple(key.split(".")), value, Origin(origin))

    for text in asked.sets:
        put_any(text, put)
    for text in asked.config:
        put_any(text, put, "--config", "channels=16", "train.config.")
    if is_task:
        put("train.task", what, "the argument")
        put("resources.nodes", 1, "slurmgpu train")
        put("resources.gpus", gpus, "option --processes")
    loaded = load_job(None if is_task else find_job_file(what), layer, cwd=Path.cwd(), environ=os.environ)
    if loaded.job.train is None:
        raise InvalidInput(
            f"{what}: has no train:, and there is nothing to train",
            hint="slurmgpu run runs a job's command on this machine",
        )
    return plan_here(loaded, asked.cluster)


def described(asked: _Described) -> dict[str, Any]:
    """The same training as `prepare` takes it: a job for the cluster."""
    sets = (*asked.sets, *(f"train.config.{text}" for text in asked.config))
    given: dict[str, Any] = {"job__cluster": asked.cluster}
    if _is_task(asked.what):
        return {**given, "job__set": (f"train.task={json.dumps(asked.what)}", *sets)}
    return {**given, "job__file": asked.what, "job__set": sets}


def _is_task(what: str) -> bool:
    """Whether the word names a task, and no job file."""
    return re.search(r"\.py(:|\Z)|\Aslurmgpu:", what) is not None
