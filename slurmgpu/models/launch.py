"""How processes are started."""

from typing import Annotated

from slurmgpu.models.base import Model, Words
from slurmgpu.models.kinds import LAUNCHERS, OneOf

__all__ = ["LAUNCHER", "Launch"]

LAUNCHER = OneOf(LAUNCHERS, "auto")
"""The launchers that a job may name."""


class Launch(Model):
    """How the command's processes are started; in a file the launcher's name alone will do."""

    launcher: Annotated[str, LAUNCHER] = "auto"
    """torchrun: on each node one agent starts a process per GPU; accelerate, deepspeed: the same with their settings; srun:
    one task per GPU; mpi: the same for MPI programs; mpirun: MPI's own launcher; ray: a Ray cluster over the nodes, and
    the command as its driver; plain: the command runs once; auto: what the command and its script need."""
    srun_options: Words = ()
    """Further options of srun, one word each, as in `srun_options: [--mpi=none]`; they follow the cluster's and the
    environment's."""
