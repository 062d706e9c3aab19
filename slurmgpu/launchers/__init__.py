"""Launchers, which start the processes of a job: one module each, found by its name.

Here: how a launcher is recognised in a command, when it is chosen, what it starts, how it is rendered, what is wrong in its line.
Not here: the choice among them (planning/launcher_choice), their templates (templates/launcher/), rules on whole scripts.
A module here is imported by stand-ins for Slurm, too: models are imported for types only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmgpu.launchers._base import (
    Launcher,
    Launching,
    LaunchLine,
    Started,
    first_of,
    started_twice,
    whole_command,
)
from slurmgpu.launchers._programs import (
    PROGRAMS,
    SHIPPED,
    launch_line,
    launcher_in,
    launcher_module,
    program_starting,
    python_files,
    started_by,
    stays_on_its_node,
)
from slurmgpu.launchers.torchrun import RENDEZVOUS, TORCHRUN, torchrun_at, torchrun_processes

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan

__all__ = [
    "PROGRAMS",
    "RENDEZVOUS",
    "SHIPPED",
    "TORCHRUN",
    "LaunchLine",
    "Launcher",
    "Launching",
    "Started",
    "first_of",
    "launch_line",
    "launcher",
    "launcher_in",
    "launcher_module",
    "program_starting",
    "python_files",
    "started_by",
    "started_processes",
    "started_twice",
    "stays_on_its_node",
    "torchrun_at",
    "torchrun_processes",
    "whole_command",
    "world_size",
]


def launcher(name: str) -> Launcher:
    """Return the launcher of that name; InvalidInput where a user's own module has none."""
    from slurmgpu.models.base import LAUNCHERS  # which imports Pydantic: stand-ins do without

    return LAUNCHERS.instance(name, Launcher)


def world_size(plan: Plan) -> int:
    """Processes that the launcher starts over all nodes."""
    return plan.processes_per_node * (plan.nodes if launcher(plan.launcher).on_every_node else 1)


def started_processes(plan: Plan) -> Started | None:
    """Return what a launcher in a plan's command starts; None: there is none."""
    alone = plan.command if plan.launcher == "plain" else None
    return started_by(alone or (), plan.gpus_per_node, plan.nodes)
