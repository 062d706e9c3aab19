"""The rules of ``slurmgpu check``: one small function each, pure, in modules by subject; all of them in one table."""

from __future__ import annotations

from slurmgpu.scripts.rules import (
    cluster,
    ending,
    environment,
    launching,
    logs,
    passed,
    refused,
    resources,
    spelling,
    values,
    words,
)
from slurmgpu.scripts.rules.base import Rule

__all__ = ["RULES"]

_MODULES = (
    passed,
    refused,
    spelling,
    values,
    words,
    resources,
    logs,
    environment,
    launching,
    ending,
    cluster,
)

RULES: dict[str, Rule] = {rule.name: rule for module in _MODULES for rule in module.RULES}
"""By name, in the order of the documentation."""
