"""mpi: srun starts the processes of an MPI program, such as one of Horovod, and tells MPI who is who (PMIx or PMI-2)."""

from __future__ import annotations

from slurmgpu.launchers.srun import Srun

__all__ = ["LAUNCHER"]


class Mpi(Srun):
    """One task per GPU, with the ranks in torch.distributed's variables, too."""

    needs_pmi = True


LAUNCHER = Mpi()
