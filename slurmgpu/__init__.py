"""slurmgpu: from a job file to a finished, resumable multi-GPU training on any Slurm cluster."""

__version__ = "0.1.0"
