"""Adds up ones over all processes of MPI."""

from mpi4py import MPI

world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.allreduce(1)}, {MPI.Get_library_version().split(',')[0]}", flush=True)
