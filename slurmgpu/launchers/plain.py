"""plain: the command runs once, on the first node, as it was given."""

from __future__ import annotations

from typing import Literal

from slurmgpu.errors import PlanError
from slurmgpu.launchers._base import Launcher, whole_command
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan

__all__ = ["LAUNCHER"]


class Plain(Launcher):
    """No launcher: one process, or a command that starts its own."""

    by_srun = False
    on_every_node = False
    one_task_each = False

    def check(self, name: str, job: Job, environment: Environment) -> None:
        if job.train is not None and job.train.strategy == "ddp":
            raise PlanError(
                "launch: plain starts one process, and train.strategy: ddp needs one per GPU",
                hint="leave launch out, or use strategy: single",
            )

    def tasks(self, name: str, asked: int | None, gpus_per_node: int, wanted: int | None) -> tuple[int, str]:
        return (asked, "as asked") if asked else (1, "one process")

    def processes(self, gpus_per_node: int, tasks: int) -> int:
        return 1

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        """Processes that the command spawns by itself meet on its node."""
        return "one" if plan.spawned_per_node else None

    def passes_on(self, plan: Plan) -> dict[str, str] | None:
        return {"TERM": "TERM", "USR1": "USR1", "USR2": "USR2"}

    def lines(self, plan: Plan) -> list[str]:
        return [whole_command(plan)]


LAUNCHER = Plain()
