"""plain: the command runs once, on the first node, as it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from slurmgpu.errors import PlanError
from slurmgpu.launchers._base import Launcher, Launching, first_of, whole_command

if TYPE_CHECKING:
    from slurmgpu.models.environment import Environment
    from slurmgpu.models.job import Job
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["LAUNCHER"]

_TENSORFLOW = (
    "MultiWorkerMirroredStrategy(cluster_resolver=tf.distribute.cluster_resolver.SlurmClusterResolver())"
)


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

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching | None:
        """Scripts that use all GPUs of a node from one process, or spawn their own processes there."""
        warnings: list[str] = []
        if finding := script.one_process:
            verb = "starts its own processes" if script.spawns else "uses the GPUs"
            instead = "let one process train on each GPU: init_process_group() without addresses and ranks,"
            if finding[0].endswith("Strategy"):
                instead = f"let a worker train on each node: {_TENSORFLOW},"
            if nodes > 1:
                warnings.append(
                    f"{script.path} {verb} on one node; the other {nodes - 1} of {nodes} nodes would stay idle; ask for 1 node, "
                    f"or {instead} in place of {finding[0]}"
                )
            does = "spawns its own processes" if script.spawns else "drives several GPUs from one process"
            why = f"it {does} ({script.at(finding)}): one process gets all GPUs"
            return Launching("plain", why, tuple(warnings), spawns=script.spawns is not None)
        if script.manager not in {"TensorFlow", "JAX"}:
            return None
        if script.manager == "TensorFlow":
            strategy = (
                "MultiWorkerMirroredStrategy with SlurmClusterResolver" if nodes > 1 else "MirroredStrategy"
            )
            warnings.append(
                f"nothing in {script.path} spreads the training: TensorFlow uses one GPU; tf.distribute's {strategy} uses all"
            )
        elif nodes > 1:
            warnings.append(
                f"{script.path} runs on {first_of(nodes)}; jax.distributed.initialize() joins the others"
            )
        why = f"{script.at(script.framework)} finds the GPUs of its node from one process"
        return Launching("plain", why, tuple(warnings))


LAUNCHER = Plain()
