"""The rules of ``slurmgpu check``: one small function each, pure, in modules by subject."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from slurmgpu.script.rules import (  # fmt: skip
    cluster,
    counting,
    ending,
    environment,
    habits,
    launching,
    logs,
    reading,
    resources,
    values,
)
from slurmgpu.script.rules.base import Rule

__all__ = ["RULES"]


def _rules(module: ModuleType) -> Iterator[Rule]:
    """Yield the rules of a module and of the lists in it, as they are written there."""
    for one in vars(module).values():
        yield from (each for each in (one if isinstance(one, list) else [one]) if isinstance(each, Rule))


_MODULES = (
    reading, values, resources, logs, environment, launching, counting, ending, habits, cluster,
)  # fmt: skip
RULES = {rule.name: rule for module in _MODULES for rule in _rules(module)}
"""By name, in the order of the documentation."""
