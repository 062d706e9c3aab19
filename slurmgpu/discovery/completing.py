"""What `slurmgpu init` adds to a profile: an environment, and the defaults of jobs; all else stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmgpu.discovery.refreshing import dumped, yaml_editor
from slurmgpu.models.environment import Environment

__all__ = ["add", "completed", "environment_data"]


def environment_data(environment: Environment) -> dict[str, object]:
    """An environment as a profile writes it: what differs from the defaults."""
    return environment.model_dump(mode="json", exclude_defaults=True, exclude_none=True)


def add(data: dict[str, Any], additions: Mapping[str, Any]) -> bool:
    """Add values where there are none, mappings entry by entry, in place; whether anything changed."""
    changed = False
    for key, value in additions.items():
        if key == "environments" and isinstance(data.get(key), dict):
            changed |= add(data[key], value)
        elif key not in data:
            data[key] = value
            changed = True
    return changed


def completed(text: str, additions: Mapping[str, object]) -> str | None:
    """The profile with the additions, its comments and its other lines kept; None: it has them all."""
    editor = yaml_editor()
    data = editor.load(text)
    return dumped(editor, data) if add(data, additions) else None
