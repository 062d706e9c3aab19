"""Whether the GPUs that a training gets can compute in the precision it asks for.

The training entrypoint refuses the same when it starts (slurmgpu/training/precision.py), after the wait in the queue.
"""

from __future__ import annotations

from collections.abc import Collection

from slurmgpu.errors import PlanError
from slurmgpu.models.gpu_models import well_known

__all__ = ["judge_precision"]

_AMPERE = (8, 0)  # the first compute capability with bf16 in hardware


def judge_precision(
    precision: str, types: Collection[str], *, has_gpus: bool, force: bool = False
) -> tuple[str, ...]:
    """Warnings; PlanError where none of the GPUs that it may get (``types``) can do it.

    Types of which nothing is known pass. ``force`` makes a warning of a refusal.
    """
    if precision == "fp16" and not has_gpus:
        return (
            "train.precision: fp16 on CPUs is a trial of what GPUs do, and needs torch 2.3 or newer there; "
            "to train on CPUs, use fp32 or bf16",
        )
    if precision != "bf16" or not has_gpus:
        return ()
    known = {name: capability for name in sorted(types) if (capability := _capability(name))}
    older = {name: capability for name, capability in known.items() if capability < _AMPERE}
    if not older:
        return ()
    said = ", ".join(f"{name} has {major}.{minor}" for name, (major, minor) in older.items())
    needs = "train.precision: bf16 needs GPUs of compute capability 8.0 or newer (A100 and later)"
    newer = [name for name in sorted(types) if name not in older]
    if newer:
        return (f"{needs}, and the job may get others: {said}; gpu_type: {newer[0]} keeps to one",)
    return _refused(
        f"{needs}, and {said}", "use precision: fp16 or fp32, or another type of GPU (--gpu-type)", force
    )


def _refused(message: str, hint: str, force: bool) -> tuple[str, ...]:
    if not force:
        raise PlanError(message, hint=f"{hint}; --force submits it as it is")
    return (message,)


def _capability(name: str) -> tuple[int, int] | None:
    model = well_known(name)
    return model.capability if model else None
