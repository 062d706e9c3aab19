"""The only readers of command lines and options: Slurm's, torchrun's, a container's. Standard library alone."""
