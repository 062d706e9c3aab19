"""ray: a Ray cluster on the job's nodes for as long as the driver runs, which is the job's command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from slurmgpu.errors import PlanError
from slurmgpu.launchers._base import Launcher, Launching, first_of, interpreter, runner, whole_command

if TYPE_CHECKING:
    from slurmgpu.models.environment import Environment
    from slurmgpu.models.job import Job
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["LAUNCHER"]


class Ray(Launcher):
    """One task on each node: the first starts Ray's head and, when all nodes have joined it, the driver.

    The nodes find their parts by SLURM_NODEID. ``ray symmetric-run`` (2.49 and newer) does the same by comparing
    addresses, which several interfaces on a node confuse.
    """

    needs_python = True
    programs = ("ray",)

    def check(self, name: str, job: Job, environment: Environment) -> None:
        super().check(name, job, environment)
        if job.train is not None:
            raise PlanError(
                "launch: ray starts a driver, and train: is a training of torch.distributed",
                hint="leave launch out: srun starts one task per GPU",
            )
        if job.profile is not None:
            raise PlanError(
                "profile and launch: ray: the driver would be profiled, and the GPUs are used by Ray's workers",
                hint='leave profile out, and ask Ray for it in the script: runtime_env={"nsight": "default"}',
            )

    def tasks(self, name: str, asked: int | None, gpus_per_node: int, wanted: int | None) -> tuple[int, str]:
        tasks, _ = super().tasks(name, asked, gpus_per_node, wanted)
        return tasks, "Ray's workers share a node"

    def processes(self, gpus_per_node: int, tasks: int) -> int:
        return 1

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        return "many" if plan.nodes > 1 else "one"

    def preparation(self, plan: Plan) -> str | None:
        return "launcher/ray.sh.j2"

    def lines(self, plan: Plan) -> list[str]:
        return [f'{runner(plan)}{interpreter(plan)} -c "$ray_node"', whole_command(plan)]

    def values(self, plan: Plan) -> dict[str, object]:
        cpus = "" if plan.cpus_per_task is None else f"--num-cpus={plan.cpus_per_task} "
        return {"ray_resources": f"{cpus}--num-gpus={plan.gpus_per_node}", "ray_gpus": plan.gpus_per_node}

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching | None:
        if script.manager != "Ray":
            return None
        found = script.at(script.framework)
        own = f"; {script.at(script.limits_ray)} starts one of its own" if script.limits_ray else ""
        if nodes > 1 and not own:
            return Launching("ray", f"{found} starts its workers on all nodes, once these have joined")
        idle = f"Ray in {script.path} runs on {first_of(nodes)}{own}; ray.init() without resources joins all nodes"
        return Launching("plain", f"{found} starts its own workers", (idle,) if nodes > 1 else ())

    def over_nodes(
        self, words: tuple[str, ...], script: ScriptFacts | None, nodes: int, gpus: int
    ) -> Launching:
        """Ray's own command line stays on its node."""
        instead = (
            "write command: [python, SCRIPT, ...] with launch: ray, which joins all nodes; or use nodes: 1"
        )
        return Launching(
            "plain", "ray starts its own processes", (f"ray runs on {first_of(nodes)}; {instead}",)
        )


LAUNCHER = Ray()
