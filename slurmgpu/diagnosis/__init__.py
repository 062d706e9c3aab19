"""Why a job failed, by its logs: what failed first, on which rank and host, and what to do about it.

Stands alone: the standard library of Python 3.9 or newer is all that it needs, for it travels with each run and is
run on a compute node at the end of the batch script. ``python -I -m slurmgpu.diagnosis LOG...`` reads any logs.
"""
