"""A script run on this machine without Slurm: what it counts on is stood in for."""
