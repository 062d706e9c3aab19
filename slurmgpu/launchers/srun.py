"""srun: one task per GPU, each with its rank in torch.distributed's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmgpu.launchers._base import Launcher, Launching, Started, spread, whole_command
from slurmgpu.lines.command import runner_length
from slurmgpu.lines.slurm import SRUN

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["LAUNCHER"]

_OWN_GPU = "case ${SLURM_STEP_GPUS:-,} in *,*) ;; *) export LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 ;; esac; "  # its own alone


class Tasks(Launcher):
    """A task for each process, whoever starts them.

    A training reads Slurm's variables itself; for other commands a shell sets RANK and the rest.
    """

    template = "launcher/srun.sh.j2"
    one_task_each = False

    def tasks(self, name: str, asked: int | None, gpus_per_node: int, wanted: int | None) -> tuple[int, str]:
        if asked:
            return asked, "as asked"
        if wanted:
            return wanted, "one task per node"
        return max(1, gpus_per_node), "one task per GPU" if gpus_per_node else "one task"

    def processes(self, gpus_per_node: int, tasks: int) -> int:
        return tasks

    def passes_on(self, plan: Plan) -> dict[str, str] | None:
        """srun passes USR1 on; for TERM it kills its tasks."""
        return {"TERM": "USR1", "USR1": "USR1", "USR2": "USR1"} if plan.train is not None else None

    def lines(self, plan: Plan) -> list[str]:
        if plan.train is not None:
            return [whole_command(plan)]
        ranks = 'RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS"'
        own_gpu = _OWN_GPU if plan.own_gpus == 1 else ""
        shell = f'export {ranks} LOCAL_WORLD_SIZE={plan.tasks_per_node}; {own_gpu}exec "$@"'
        return [f"sh -c '{shell}' sh", whole_command(plan)]

    def values(self, plan: Plan) -> dict[str, object]:
        return {"sets_rank": plan.train is None, "own_gpu": plan.own_gpus == 1}


# Where TensorFlow's workers are told of the others.
_RESOLVER = "cluster_resolver=tf.distribute.cluster_resolver.SlurmClusterResolver()"


class Srun(Tasks):
    """Slurm's own launcher."""

    programs = ("srun",)
    spreads = True

    def started(self, words: tuple[str, ...], gpus: int, nodes: int) -> Started:
        told = SRUN.read(words[runner_length(words) + 1 :]).given.get("ntasks") or ""
        return spread("srun", int(told) if told.isdecimal() else None, nodes)

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching | None:
        """One task per GPU for scripts that take their rank from Slurm; TensorFlow's workers are one per node."""
        if script.one_process:
            return None
        if script.joins:
            found = script.at(script.joins)
            if script.joins[0].startswith("jax"):
                return Launching(
                    "srun", f"JAX finds the other processes by Slurm's variables ({found}): one task per GPU"
                )
            untold = (
                f"{script.path} does not tell MultiWorkerMirroredStrategy where the other workers are: each would train alone; "
                f"pass {_RESOLVER}"
            )
            why = f"a worker of TensorFlow uses all GPUs of its node ({found}): one task per node"
            return Launching("srun", why, () if script.told else (untold,), tasks_per_node=1)
        if script.manager == "Lightning":
            advice = (
                f"Lightning stops unless its Trainer has the job's numbers: num_nodes={nodes}, and devices={processes // nodes} "
                'or "auto"; nothing to do if yours has'
            )
            why = f"{script.at(script.framework)} takes its ranks from Slurm: one task per GPU"
            return Launching("srun", why, (advice,) if nodes > 1 else ())
        if script.slurm_rank and not script.framework:
            return Launching(
                "srun", f"it takes its rank from Slurm ({script.at(script.slurm_rank)}): one task per GPU"
            )
        return None


LAUNCHER = Srun()
