"""QOS as a site describes them, and how Slurm is told of them."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.models.base import Model
from slurmgpu.models.units import Duration
from slurmgpu.sandbox.shape import QosShape

__all__ = ["DeclaredQos", "allowed_qos", "declared_qos"]


class DeclaredQos(Model):
    """A QOS of a site: what a job in it may have, and where it may be used."""

    name: str
    max_time: Duration | None = None
    """The longest time limit of a job."""
    max_nodes: int | None = None
    """The most nodes of a job."""
    max_gpus: int | None = None
    """The most GPUs of a job."""
    max_gpus_per_user: int | None = None
    """The most GPUs of a user's running jobs together."""
    max_jobs_per_user: int | None = None
    """The most running jobs of a user."""
    partitions: tuple[str, ...] = ()
    """Where it may be used; none: everywhere."""


def declared_qos(declared: Sequence[DeclaredQos]) -> tuple[QosShape, ...]:
    """The same in sacctmgr's words; a job over a limit of its own is refused (DenyOnLimit), not left waiting."""
    return tuple(_shape(one) for one in declared)


def _shape(qos: DeclaredQos) -> QosShape:
    limits = ["Flags=DenyOnLimit"]
    limits += [f"MaxWall={qos.max_time}"] if qos.max_time else []
    limits += [f"MaxJobsPerUser={qos.max_jobs_per_user}"] if qos.max_jobs_per_user else []
    per_job = [f"node={qos.max_nodes}"] if qos.max_nodes else []
    per_job += [f"gres/gpu={qos.max_gpus}"] if qos.max_gpus else []
    tres = [f"MaxTRESPerJob={','.join(per_job)}"] if per_job else []
    tres += [f"MaxTRESPerUser=gres/gpu={qos.max_gpus_per_user}"] if qos.max_gpus_per_user else []
    return QosShape(name=qos.name.lower(), limits=tuple(limits), tres=tuple(tres))


def allowed_qos(declared: Sequence[DeclaredQos], partition: str, required: bool) -> str | None:
    """The value of the partition's AllowQos; None where every QOS is allowed.

    Unless a QOS is ``required``, a job may also name none, and is then in `normal`.
    """
    if not declared:
        return None
    here = [one.name.lower() for one in declared if not one.partitions or partition in one.partitions]
    if not required:
        here.append("normal")
    # A partition where none is legal would otherwise allow all.
    return ",".join(here) or "none-is-legal"
