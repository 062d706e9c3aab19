"""The most that a job costs: GPU-hours, and the site's charge for them."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.models.cluster import Billing, Cluster, NodeGroup
from slurmgpu.models.units import Duration
from slurmgpu.planning.drafting import Draft

__all__ = ["Cost", "cost_of", "figure"]


class Cost(NamedTuple):
    """The most that a job can cost: if it runs to its time limit."""

    gpu_hours: float | None
    """None: nodes are given whole, and how many GPUs they have is not known."""
    gpu_hours_why: str
    charge: float | None
    """The site's charge, in ``unit``; None: the profile does not say."""
    unit: str
    charge_why: str


def figure(amount: float) -> str:
    """Four digits, and never an exponent: 0.25, 5.333, 10800."""
    return f"{amount:.0f}" if amount >= 1000 else f"{amount:.4g}"


def cost_of(cluster: Cluster, draft: Draft, time: Duration | None, *, tasks: int = 1) -> Cost | None:
    """Return the cost of a draft that runs for a time; None where the time is not limited or not known.

    ``tasks`` is the number of an array's tasks: each runs for that time.
    """
    if time is None or time.seconds is None:
        return None
    hours = -(-time.seconds // 60) / 60 * tasks  # Slurm rounds a limit up to whole minutes
    each = f"{count(tasks, 'task')} x " if tasks > 1 else ""
    layout = draft.layout
    partition = cluster.partitions.get((draft.partition or "").split(",")[0])
    gpus, cpus, memory, rounded = _billed(draft, partition.whole_nodes if partition else None)
    gpu_hours = None if gpus is None else layout.nodes * gpus * hours
    why = (
        ""
        if gpus is None
        else f"{each}{count(layout.nodes, 'node')} x {count(gpus, 'GPU')} x {time}{rounded}"
    )
    if layout.gpus is not None and not rounded:
        gpu_hours, why = layout.gpus * hours, f"{each}{count(layout.gpus, 'GPU')} x {time}"
    if partition is None or partition.billing is None:
        return Cost(gpu_hours, why, None, "", "")
    billing = partition.billing
    qos = cluster.qos.get(draft.qos.value or "")
    factor = 1.0 if qos is None or qos.usage_factor is None else qos.usage_factor
    if layout.gpus is not None and not rounded:
        return Cost(gpu_hours, why, None, billing.unit, "it depends on how Slurm splits the GPUs")
    by_gpu = billing.gpu or billing.gpu_by_type
    if (by_gpu and gpus is None) or (billing.cpu and cpus is None) or (billing.memory and memory is None):
        return Cost(gpu_hours, why, None, billing.unit, "it depends on what the site gives")
    gpu_type = draft.ask.gpu_type or (draft.groups[0].gpu_type if draft.groups else None)
    if gpus and billing.gpu_by_type and not billing.gpu and gpu_type not in billing.gpu_by_type:
        return Cost(gpu_hours, why, None, billing.unit, f"no price is stated for {gpu_type or 'such'} GPUs")
    per_hour, parts = _per_node(billing, draft, gpus or 0, cpus or 0, (memory or 0) / 1024)
    per_hour *= layout.nodes * factor
    times = f" x {factor:g} (QOS {draft.qos.value})" if factor != 1.0 else ""
    how = f"{each}{count(layout.nodes, 'node')} x ({parts}){times} x {time}"
    return Cost(gpu_hours, why, per_hour * hours, billing.unit, how)


def _billed(draft: Draft, whole_there: bool | None) -> tuple[int | None, int | None, int | None, str]:
    """GPUs, CPUs and memory (MiB) of a node that count: whole nodes whole, units rounded up; None: not known."""
    gpus, cpus, memory = draft.layout.gpus_per_node, draft.cpus.amount, draft.memory.amount
    group = draft.groups[0] if draft.groups else NodeGroup.model_construct()
    if draft.ask.whole or whole_there:
        return (
            group.gpu_count if group.gpu_count is not None else (None if gpus else 0),
            group.cpus or cpus,
            group.memory.mib if group.memory else memory,
            ", nodes are given whole",
        )
    unit = group.unit
    if unit is None:
        return gpus, cpus, memory, ""
    units = -(-gpus // unit.gpus)
    if unit.cpus and cpus:
        units = max(units, -(-cpus // unit.cpus))
    if unit.memory and memory:
        units = max(units, -(-memory // unit.memory.mib))
    rounded = f", rounded up to {count(units, 'part')} of a node" if units * unit.gpus != gpus else ""
    return (
        units * unit.gpus,
        units * unit.cpus if unit.cpus else cpus,
        units * unit.memory.mib if unit.memory else memory,
        rounded,
    )


def _per_node(billing: Billing, draft: Draft, gpus: int, cpus: int, gib: float) -> tuple[float, str]:
    """Return what an hour of a node's part is charged, and how that is made up."""
    gpu_type = draft.ask.gpu_type or (draft.groups[0].gpu_type if draft.groups else None)
    per_gpu = billing.gpu_by_type.get(gpu_type or "", billing.gpu)
    parts = {
        f"{gpus} GPUs x {per_gpu:g}": gpus * per_gpu,
        f"{cpus} CPUs x {billing.cpu:g}": cpus * billing.cpu,
        f"{gib:g} GiB x {billing.memory:g}": gib * billing.memory,
        f"{billing.node:g} for the node": billing.node,
    }
    parts = {text: value for text, value in parts.items() if value}
    if not parts:
        return 0.0, "nothing is charged"
    if billing.combine == "max":
        text, value = max(parts.items(), key=lambda pair: pair[1])
        return value, f"the largest of its parts: {text}"
    return sum(parts.values()), " + ".join(parts)
