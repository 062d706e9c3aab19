"""A script run on this machine without Slurm, byte for byte: what it counts on is stood in for.

Here: `slurmgpu run` and the stand-ins for srun, scontrol, module, containers and nvidia-smi.
Not here: a Slurm of its own (sandbox/). The stand-ins run alone and import the readers of lines at most.
"""
