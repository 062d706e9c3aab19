"""The only folder that runs Slurm's commands; their text to records is pure."""
