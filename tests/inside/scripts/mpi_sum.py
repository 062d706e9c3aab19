"""Adds up ones over all processes of MPI."""

import re

from mpi4py import MPI

world = MPI.COMM_WORLD
library = " ".join(re.split(r"[,\n]", MPI.Get_library_version())[0].split())
print(f"rank {world.rank} of {world.allreduce(1)}, {library}", flush=True)
