"""mpirun: Open MPI's or MPICH's own launcher, where srun cannot start MPI programs; it takes the nodes from Slurm."""

from __future__ import annotations

from slurmgpu.errors import PlanError
from slurmgpu.launchers._base import whole_command
from slurmgpu.launchers.srun import Srun
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan

__all__ = ["LAUNCHER"]

# Open MPI's variables, or those of Hydra (MPICH, Intel MPI).
_RANKS = (
    'RANK="${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}" '
    'LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}" '
    'LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE:-$MPI_LOCALNRANKS}"'
)


class Mpirun(Srun):
    """The batch shell starts it once, and it starts the processes on all nodes, one per GPU."""

    template = "launcher/mpirun.sh.j2"
    by_srun = False
    without_srun = True
    tasks_begin = 2
    task_rank = "RANK"

    def check(self, name: str, job: Job, environment: Environment) -> None:
        super().check(name, job, environment)
        if job.train is not None:
            raise PlanError(
                "launch: mpirun starts commands, and a training takes its rank from Slurm",
                hint="leave launch out: srun starts one task per GPU",
            )

    def cpus_of_a_task(self, plan: Plan) -> int | None:
        """mpirun has srun start one agent on each node, in whose share all processes of the node run."""
        return None if plan.cpus_per_task is None else plan.cpus_per_task * plan.tasks_per_node

    def passes_on(self, plan: Plan) -> dict[str, str] | None:
        """mpirun passes USR1 and USR2 on; at TERM it ends its processes."""
        return {"TERM": "TERM", "USR1": "USR1", "USR2": "USR2"}

    def lines(self, plan: Plan) -> list[str]:
        return [
            f"mpirun -n {plan.nodes * plan.processes_per_node}",
            f"sh -c 'export {_RANKS}; exec \"$@\"' sh",
            whole_command(plan),
        ]


LAUNCHER = Mpirun()
