"""What Slurm says of its cluster, read into a Cluster."""
