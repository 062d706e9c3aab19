"""Which GPUs a local run uses: those of the Slurm job that it runs in, or those of the user's own machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import InvalidInput

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan

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
    """Return whether this process runs in a job, on one of its nodes.

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


def count_of_the_job() -> int:
    """Return how many GPUs Slurm gave the job that this runs in, on this node; 0 outside of any."""
    found = gpus_of_the_job(os.environ)
    return len(found.devices) if found else 0


def choose_gpus(plan: Plan, on_gpus: bool | None) -> UsableGpus | None:
    """The GPUs that may be used here; None: the CPU stands in for them, or the job asks for none."""
    if on_gpus is False:
        return None
    if not plan.gpus_per_node:
        if on_gpus:
            raise InvalidInput(
                "--gpu: no GPU is asked for, so there is none to use",
                hint=f"--gpus {count_of_the_job() or 1} asks for GPUs; leave --gpu out, and it runs on the CPU",
            )
        return None
    found = gpus_of_the_job(os.environ)
    if found is None and on_gpus:
        found = gpus_of_this_machine(os.environ)
    if found is not None and found.devices:
        return found
    if on_gpus:
        of = found.owner if found else "this machine"
        raise InvalidInput(
            f"--gpu: {of} shows no GPU",
            hint="leave --gpu out, and it runs on the CPU; CUDA_VISIBLE_DEVICES and nvidia-smi -L show what is there",
        )
    return None


def share_out(plan: Plan, gpus: UsableGpus | None, each: int, nodes: int) -> UsableGpus | None:
    """As many GPUs as the job wants for ``each`` processes on so many nodes; InvalidInput where ranks would share one."""
    if gpus is None:
        return None
    there = len(gpus.devices)
    if nodes > there or (plan.train is not None and nodes * each > there):
        raise InvalidInput(
            f"{nodes * each} processes on {nodes} node(s) need as many GPUs, and {gpus.owner} has {there}",
            hint=f"use --processes {there}"
            + (", without --pretend-nodes" if nodes > 1 else "")
            + "; or --cpu",
        )
    return gpus.share(nodes, min(max(plan.gpus_per_node, each), there // nodes))


def gpus_in_words(plan: Plan, gpus: UsableGpus | None, on_gpus: bool | None, processes: int) -> Iterator[str]:
    """Yield a sentence for the GPUs that are used, and for those of the job that are not."""
    of_job = gpus_of_the_job(os.environ)
    if gpus is not None:
        count = len(gpus.devices)
        of = f" (the job file asks for {plan.gpus})" if plan.gpus != count else ""
        yield f"{count} GPU{'s' if count > 1 else ''} of {gpus.owner}: used{of}"
        if processes > count:
            yield f"warning: {processes} processes share {'them' if count > 1 else 'it'}; nccl refuses two of a group on one GPU"
    elif of_job is not None and of_job.devices:
        count = len(of_job.devices)
        why = "--cpu" if on_gpus is False else f"none is asked for; --gpus {count} asks for all of them"
        yield f"{count} GPU(s) of {of_job.owner}: not used ({why})"
    if of_job is not None and int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1:
        yield (
            f"the other nodes of {os.environ.get('SLURM_JOB_NODELIST', 'the job')} are not used: this runs on "
            f"{os.environ['SLURMD_NODENAME']} alone; slurmgpu submit runs on several"
        )
