"""mpi: srun starts the processes of an MPI program, such as one of Horovod, and tells MPI who is who (PMIx or PMI-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmgpu.launchers._base import Launching
from slurmgpu.launchers.srun import Tasks

if TYPE_CHECKING:
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["LAUNCHER"]


class Mpi(Tasks):
    """One task per GPU, with the ranks in torch.distributed's variables, too."""

    needs_pmi = True

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching | None:
        if script.manager != "Horovod":
            return None
        why = f"{script.at(script.framework)} takes its ranks from MPI: one task per GPU, and srun tells MPI who is who"
        return Launching("mpi", why)


LAUNCHER = Mpi()
