"""What ``slurmgpu bench --submit`` submits: one process that measures, on what its job gets."""

from __future__ import annotations

from slurmgpu.errors import PlanError
from slurmgpu.models.job import Job, Launch, Restart
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Duration
from slurmgpu.planning.settled import name_of

__all__ = ["COMMAND", "as_bench", "with_training_code"]

COMMAND = ("python", "-m", "slurmgpu.training.benching")
"""It reads asked.json in its run directory, and writes rows.jsonl there."""
_USUAL = Duration(3600)
_BENCH_SUFFIX = "-bench"
_LONGEST_NAME = 200
"""Bytes that Slurm takes."""


def as_bench(job: Job, *, tasks: int | None, timed: bool) -> Job:
    """The job whose place is measured: what it asks of the cluster and its environment are kept, what it runs is not.

    Nobody is written to, nothing is brought back from the nodes, and it never starts twice. ``tasks``: those that it has on
    a node, by which its CPUs are counted. ``timed``: the time that it asks for was meant for the bench; otherwise it is an
    hour, or less where the job asks for less. PlanError for a job that has no single place.
    """
    if job.components or job.steps or job.script is not None:
        what = "components" if job.components else "steps" if job.steps else "script"
        raise PlanError(
            f"{what}: a bench measures one training, and this job is made of {what}",
            hint="name a job file with train:, or the task itself: slurmgpu bench task task.py:NAME --submit",
        )
    limit = job.resources.time
    time = limit if limit is not None and (timed or limit.exceeds(_USUAL) is False) else _USUAL
    return job.model_copy(
        update={
            "name": name_of(job).encode()[: _LONGEST_NAME - len(_BENCH_SUFFIX)].decode(errors="ignore")
            + _BENCH_SUFFIX,
            "command": COMMAND,
            "train": None,
            "launch": Launch(launcher="plain"),
            "resources": job.resources.model_copy(
                update={"time": time, **({} if tasks is None else {"tasks_per_node": tasks})}
            ),
            "restart": Restart(),
            "array": None,
            "sample": None,
            "profile": None,
            "mail": None,
            "notify": None,
            "output": None,
            "error": None,
            "stage": job.stage.model_copy(update={"out": ()}) if job.stage is not None else None,
        }
    )


def with_training_code(plan: Plan) -> Plan:
    """The plan of a job that brings ``slurmgpu.training`` along: it need not be installed where the job runs."""
    return plan.model_copy(update={"own_loop": "slurmgpu bench"})
