"""What a session asks Slurm for: what the job would, for one terminal."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Duration
from slurmgpu.slurm import NOT_OF_SALLOC

__all__ = ["DEFAULT_TIME", "as_session", "left_out", "step_of"]

_OF_TASKS = ("--gpus-per-task=", "--cpu-bind=", "--mem-bind=")

DEFAULT_TIME = Duration.parse("1:00:00")
"""Where the cluster refuses jobs without a time limit, and none is given."""


def as_session(job: Job, cluster: Cluster) -> Job:
    """The job as it is planned for a session: one task of an array, and a shell where it says not what to run.

    PlanError for a job that cannot be one.
    """
    if job.components:
        raise PlanError(
            "components: a shell is on one kind of node, and the components of this job differ",
            hint="ask for what the shell needs by options: slurmgpu shell --gpus 1 -t 1:00:00",
        )
    # One task has all that the job has on a node: what binds several would leave it a part.
    unbound = job.resources.model_copy(update={"cpu_bind": None, "gpu_bind": None, "mem_bind": None})
    changed: dict[str, object] = {"array": None, "steps": {}, "resources": unbound}
    if job.command is None and job.train is None and job.script is None:
        changed |= {"command": ("bash",), "name": job.name or "shell"}
        if job.launch.launcher == "auto":
            changed["launch"] = job.launch.model_copy(update={"launcher": "plain"})
    if job.resources.time is None and "time" in cluster.dialect.required:
        changed["resources"] = unbound.model_copy(update={"time": _time(job, cluster)})
    return job.model_copy(update=changed)


def _time(job: Job, cluster: Cluster) -> Duration:
    partition = cluster.partitions.get(job.resources.partition or "")
    most = partition.limits.max_time if partition else None
    return most if most is not None and DEFAULT_TIME.exceeds(most) else DEFAULT_TIME


def left_out(plan: Plan) -> list[str]:
    """The options of the job that speak of a batch script, and were asked for: a session has none of them."""
    ours = {"requeue", "no-requeue", "open-mode"}
    return [str(one) for one in plan.options if one.name in NOT_OF_SALLOC and one.name not in ours]


def step_of(plan: Plan, job: Job, script: str, *, terminal: bool) -> list[str]:
    """What srun is told: one task on the first node with all that the job has there, which runs ``script``."""
    return [*_step_options(plan, job, terminal), "bash", *(["-l"] if plan.login_shell else []), script]


def _step_options(plan: Plan, job: Job, terminal: bool) -> Iterator[str]:
    yield from ("--nodes=1", "--ntasks=1", "--ntasks-per-node=1")
    if plan.cpus_per_task is not None:
        yield f"--cpus-per-task={plan.cpus_per_task * plan.tasks_per_node}"
    if plan.own_gpus is not None:
        yield f"--gpus-per-task={plan.gpus_per_node}"
    # Those of the launch are for the job's own processes, and so is the profile's binding.
    others = plan.srun_options[: len(plan.srun_options) - len(job.launch.srun_options)]
    yield from (option for option in others if not option.startswith(_OF_TASKS))
    if terminal:
        yield "--pty"
