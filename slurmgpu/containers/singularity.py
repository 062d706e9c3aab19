"""Singularity, and SingularityCE: Apptainer's words by another name."""

from __future__ import annotations

from slurmgpu.containers.apptainer import Apptainer

__all__ = ["RUNTIME"]


class Singularity(Apptainer):
    """``singularity exec --nv --bind FOLDER IMAGE``."""

    program = "singularity"
    prefix = "SINGULARITYENV_"


RUNTIME = Singularity()
