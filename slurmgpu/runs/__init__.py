"""Plans and scripts to running jobs: by sbatch, by submitit, or on this machine."""

from __future__ import annotations



