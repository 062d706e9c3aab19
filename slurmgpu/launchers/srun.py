"""srun: one task per GPU, each with its rank in torch.distributed's variables."""

from __future__ import annotations

from slurmgpu.launchers._base import Launcher, whole_command
from slurmgpu.models.plan import Plan

__all__ = ["LAUNCHER"]

_OWN_GPU = "case ${SLURM_STEP_GPUS:-,} in *,*) ;; *) export LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 ;; esac; "  # its own alone


class Srun(Launcher):
    """Slurm's own launcher. A training reads Slurm's variables itself; for other commands a shell sets RANK and the rest."""

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


LAUNCHER = Srun()
