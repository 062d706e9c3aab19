"""Which GPUs a local run may use: those of the Slurm job that it runs in, or those of the user's own machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["UsableGpus", "gpus_of_the_job", "gpus_of_this_machine", "is_on_a_node"]

# Slurm names a task's GPUs here: NVIDIA's, AMD's.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NONE = {"", "-1", "NoDevFiles"}


class UsableGpus(NamedTuple):
    """GPUs that may be used: their names, the variable that shows them to a process, and whose they are."""

    devices: tuple[str, ...]
    variable: str
    owner: str
    """Such as ``job 123 on node1``."""

    def share(self, nodes: int, each: int) -> UsableGpus:
        """The first ones that so many nodes with so many GPUs each need."""
        return self._replace(devices=self.devices[: nodes * each])


def is_on_a_node(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a job, on one of its nodes.

    A shell of ``salloc`` may be on the login node: it knows the job's id, but only slurmd sets the node's name.
    """
    return "SLURM_JOB_ID" in environ and "SLURMD_NODENAME" in environ


def gpus_of_the_job(environ: Mapping[str, str]) -> UsableGpus | None:
    """The GPUs that Slurm gave the job on this node, as it shows them; None outside a job's nodes."""
    if not is_on_a_node(environ):
        return None
    owner = f"job {environ['SLURM_JOB_ID']} on {environ['SLURMD_NODENAME']}"
    variable = next((name for name in _VISIBLE if name in environ), None)
    if variable is not None:
        return UsableGpus(_names(environ[variable]), variable, owner)
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    return UsableGpus(tuple(map(str, range(int(count) if count.isdecimal() else 0))), _VISIBLE[0], owner)


def gpus_of_this_machine(environ: Mapping[str, str]) -> UsableGpus:
    """NVIDIA's GPUs on a machine without Slurm, as far as CUDA_VISIBLE_DEVICES shows them; perhaps none."""
    shown = environ.get(_VISIBLE[0])
    if shown is not None:
        return UsableGpus(_names(shown), _VISIBLE[0], f"this machine ({_VISIBLE[0]}={shown})")
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False, env=dict(environ)
        )
        listed = done.stdout.splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        listed = []
    count = sum(line.startswith("GPU ") for line in listed)
    return UsableGpus(tuple(map(str, range(count))), _VISIBLE[0], "this machine")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name not in _NONE)
