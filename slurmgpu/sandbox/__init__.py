"""A real Slurm on this machine, with pretended GPUs: its configuration, daemons, faults, twins of clusters.

Here: everything that starts, watches and ends those daemons.
Not here: Slurm's client commands (slurm/), which a sandbox's users call as anywhere.
"""
