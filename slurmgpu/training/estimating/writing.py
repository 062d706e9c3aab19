"""The estimate of a training as a file, which ``slurmgpu train --estimate`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ..files import write_json
from ..formats.run_files import ESTIMATE_FILE
from ..settings import Settings
from ..task import load
from .arithmetic import at, made, rows
from .tracing import trace

__all__ = ["write"]

_SIZES = (1, 2, 4, 8, 16, 32, 64)


def write(settings: Settings, gpus: Sequence[int], folder: Path) -> None:
    """Work out what the training takes on so many GPUs, and write it to ``estimate.json`` in the folder; sizes in bytes.

    Raises:
        TrainingError: the task does not do what it must.
    """
    task = load(settings.task)
    facts = trace(task, settings, gpus)
    found = rows(facts, settings, gpus, on_gpu=settings.device != "cpu", own_step=task.has("step"))
    write_json(
        folder / ESTIMATE_FILE,
        {
            "schema": "slurmgpu.estimate/1",
            "task": settings.task,
            "precision": settings.precision,
            "torch": torch.__version__,
            "parameters": facts.elements,
            "micro_batch_to_be_found": settings.micro_batch == "auto",
            "activations": {str(size): at(facts.peaks, size) for size in _SIZES},
            "made": made(facts, settings),
            "note": facts.note,
            "rows": [each._asdict() for each in found],
        },
    )
