"""What templates see of an interactive session: the job's own values, and another ending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slurmgpu.launchers import launcher, whole_command
from slurmgpu.models.plan import Plan
from slurmgpu.rendering.context import SCRIPT_NAME, context

__all__ = ["ShellValues", "shell_context", "shell_plan"]


class ShellValues(NamedTuple):
    """What a session needs besides its plan."""

    ending: str = "interactive"
    """The template below ``shell/`` that the script ends with."""
    files: tuple[str, ...] = ("enter.sh",)
    """Further files of it, each a template there."""
    values: Mapping[str, Any] = {}
    """Further values for them, below ``shell``."""


def shell_plan(plan: Plan, command: tuple[str, ...] | None) -> Plan:
    """The plan of a job as the plan of a session in its place, on its first node; None: a shell, or a server.

    What Slurm is asked for and the environment stay as they are.
    """
    environment = plan.environment
    container = environment.container
    if container is not None:
        bound = plan.own_loop is not None or plan.debug
        binds = container.binds if bound else (*container.binds, "$SLURMGPU_RUN_DIR")
        container = container.model_copy(update={"binds": binds, "mode": "exec"})
        environment = environment.model_copy(update={"container": container})
    changed = {
        "launcher": "plain",
        "spawned_per_node": 0,
        "command": command,
        "train": None,
        "script": None,
        "shebang": None,
        "tended": False,
        "restart_limit": None,
        "restart_on": (),
        "environment": environment,
        "packed": None,
        "profile": None,
        "sample": None,
        "notify": None,
    }
    return plan.model_copy(update=changed)


def shell_context(plan: Plan, values: ShellValues) -> dict[str, Any]:
    """The values of ``VARIABLES`` for a session; ``plan`` is `shell_plan`'s."""
    named = plan.model_copy(update={"command": plan.command or ("bash",)})
    shared = context(named, SCRIPT_NAME)
    starts = launcher(named.launcher).template
    before = [section for section in shared["sections"] if section != starts]
    sections = [*before, "shell/announce.sh.j2", f"shell/{values.ending}.sh.j2"]
    command = None if plan.command is None else whole_command(plan)
    return {
        **shared,
        "submit_by_hand": None,
        "tended": {"job": '"$SLURM_JOB_ID"'},
        "options": [],
        "sections": sections,
        "shown": sections,
        "steps": [],
        "shell": {"command": command, "tasks_per_node": plan.tasks_per_node, **values.values},
    }
