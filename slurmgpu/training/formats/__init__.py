"""Formats on which the training entrypoint and the rest of slurmgpu agree; the standard library alone, since they travel."""
