"""The tasks that come with slurmgpu, and the options of each, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmgpu.errors import PlanError, did_you_mean

__all__ = ["PREFIX", "check_shipped_task", "shipped_tasks"]

PREFIX = "slurmgpu:"


def shipped_tasks() -> dict[str, Any]:
    """What each is for, and its options, by name; the training reads the same file."""
    file = Path(__file__).resolve().parent.parent / "training" / "tasks" / "options.json"
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table


def check_shipped_task(task: str, config: Mapping[str, object]) -> None:
    """PlanError for a name that there is not, a key of ``config:`` that it does not have, or none of its choices."""
    table, name = shipped_tasks(), task.removeprefix(PREFIX)
    if name not in table:
        names = [PREFIX + each for each in table]
        raise PlanError(
            f"train.task: {task!r}: there is no such task in slurmgpu; {did_you_mean(task, names)}"
            f"there are {', '.join(names)}",
            hint="a task of your own is written as FILE.py:CLASS",
        )
    options = table[name]["options"]
    for key, value in config.items():
        if key not in options:
            raise PlanError(
                f"train.config.{key}: {task} has no such option; {did_you_mean(key, list(options))}"
                f"it has {', '.join(options)}",
                hint="docs/tasks.md says what each means",
            )
        choices = options[key].get("choices", [value])
        if value not in choices:
            raise PlanError(
                f"train.config.{key}: {value!r}: for {task} it must be one of {', '.join(map(str, choices))}"
            )
