"""Who starts the processes of a job: each launcher is one module, found by its name."""

from __future__ import annotations

from slurmgpu.launchers._base import Launcher, whole_command
from slurmgpu.models.base import LAUNCHERS
from slurmgpu.models.plan import Plan

__all__ = ["Launcher", "launcher", "whole_command", "world_size"]


def launcher(name: str) -> Launcher:
    """Return the launcher of that name; InvalidInput where a user's own module has none."""
    return LAUNCHERS.instance(name, Launcher)


def world_size(plan: Plan) -> int:
    """Processes that the launcher starts over all nodes."""
    return plan.processes_per_node * (plan.nodes if launcher(plan.launcher).on_every_node else 1)
