"""Job x Cluster -> Plan: pure, and every derived value has its reason."""

from __future__ import annotations

import re

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning import derived
from slurmgpu.planning.settled import Settled, Surroundings, plan_of

__all__ = ["make_plan"]


def make_plan(job: Job, cluster: Cluster, around: Surroundings) -> Plan:
    """Resolve the job on the cluster; PlanError names what does not fit and what would."""
    _check_array(job, cluster)
    made = _settled(job, cluster, around)
    if cluster.farewell is not None:
        made = made._replace(warnings=(cluster.farewell, *made.warnings))
    return plan_of(job, cluster, around.work_dir, made)


def _settled(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    if job.exact:
        from slurmgpu.planning import exact

        return exact.settle(job, cluster, around)
    if job.components:
        from slurmgpu.planning import components

        return components.settle(job, cluster, around)
    return derived.settle(job, cluster, around)


def _check_array(job: Job, cluster: Cluster) -> None:
    """PlanError when an index is over the site's limit, with the arrays that would do."""
    most = cluster.slurm.max_array_size
    if job.array is None or most is None:
        return
    largest = max(map(int, re.findall(r"\d+", job.array.indices)))
    if largest >= most:
        raise PlanError(
            f"array: {job.array} has the number {largest}, and {cluster.name!r} allows indices up to {most - 1} (MaxArraySize)",
            hint=f"submit several arrays of at most {most} tasks, such as -a 0-{most - 1}, each with an offset of its own "
            f"that the command adds: --set variables.OFFSET={most}",
        )
