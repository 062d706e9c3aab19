"""Profiles of clusters: discovered from Slurm and the login node, written, refreshed, verified, fetched.

Here: what `slurmgpu init` and `slurmgpu cluster` do with profiles.
Not here: reading a profile for a job (files/clusters.py), its model (models/cluster.py).
"""

from __future__ import annotations
