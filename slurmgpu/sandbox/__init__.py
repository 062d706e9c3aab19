"""A real Slurm on this machine: its daemons, its configuration, its life."""
