"""What a waiting job asks for, as sbatch's options: to ask for the same, but for one thing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from slurmgpu.models.run import JobStatus

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked

__all__ = ["as_asked", "gpu_option"]


def as_asked(asked: Asked, job: JobStatus, *, without: Collection[str] = ()) -> list[str]:
    """sbatch's options for what the job asks for, but those that a shape gives itself."""
    tasks = asked.tasks or 1
    given = {
        "--partition": ",".join(asked.partitions), "--account": job.account, "--qos": job.qos,
        "--nodes": str(asked.nodes), "--ntasks": str(tasks), "--cpus-per-task": str(max(1, asked.cpus // tasks)),
        "--mem": f"{asked.per_node[2]}M" if asked.memory else None,
        "--time": str(max(1, asked.limit // 60)) if asked.limit else None,
        "--constraint": asked.features, "--reservation": asked.reservation, "--licenses": asked.licenses,
        "--nodelist": ",".join(asked.wanted_nodes), "--exclude": ",".join(asked.excluded_nodes),
        "--gpus-per-node": gpu_option(asked, asked.per_node[0]) if asked.gpus_per_node or asked.nodes == 1 else None,
        "--gpus": gpu_option(asked, asked.gpus) if asked.gpus and not asked.gpus_per_node and asked.nodes > 1 else None,
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in given.items() if value and name not in without]
    return [*words, "--exclusive"] if asked.exclusive else words


def gpu_option(asked: Asked, count: int | None) -> str | None:
    """A number of the job's GPUs as sbatch's options take it: `a100:4`."""
    if not count:
        return None
    return f"{asked.gpu_types[0]}:{count}" if len(asked.gpu_types) == 1 else str(count)
