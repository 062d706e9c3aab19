"""What the training entrypoint and the rest of slurmgpu must agree on: the standard library alone, for it travels into jobs."""
