"""Which GPUs a local run uses, and what is said of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurmgpu.errors import InvalidInput
from slurmgpu.local.site import UsableGpus, gpus_of_the_job, gpus_of_this_machine
from slurmgpu.models.plan import Plan


def count_of_the_job() -> int:
    """How many GPUs Slurm gave the job that this runs in, on this node; 0 outside of any."""
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


def told_of_gpus(plan: Plan, gpus: UsableGpus | None, on_gpus: bool | None, processes: int) -> Iterator[str]:
    """What is said of the GPUs: those that are used, and those of the job that are not."""
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
