"""The binding of a job's tasks: as the job says, else as the profile does for whole nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.containers import enters_by_srun
from slurmgpu.errors import PlanError
from slurmgpu.launchers import launcher
from slurmgpu.lines.options import Release
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Reason
from slurmgpu.models.resources import Resources, entries, gpus_of_a_task
from slurmgpu.planning.drafting import Draft
from slurmgpu.planning.nodes import gres_type, other_types_beside, release_of

__all__ = [
    "Bound",
    "Starting",
    "asked_again",
    "binding_words",
    "bound",
    "check_starts",
    "without",
]

_OBSOLETE_RANK: Release = (24, 11)
_BINDS_PER_TASK: Release = (21, 8)


class Starting(NamedTuple):
    """The start of a job's processes."""

    name: str
    """The launcher's."""
    environment: Environment
    tasks_per_node: int
    processes_per_node: int

    @property
    def by_srun(self) -> bool:
        """True if srun starts them."""
        return launcher(self.name).by_srun or enters_by_srun(self.environment)

    @property
    def one_task_each(self) -> bool:
        """True if one task starts all processes of a node."""
        return launcher(self.name).one_task_each


class Bound(NamedTuple):
    """A job's binding."""

    words: tuple[str, ...] = ()
    """Options of its srun."""
    own_gpus: int | None = None
    """GPUs of each task where the others' are hidden from it."""
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()


def binding_words(resources: Resources) -> tuple[str, ...]:
    """Return what the job's own fields put on srun's line."""
    given = (("cpu-bind", resources.cpu_bind), ("mem-bind", resources.mem_bind))
    return tuple(f"--{option}={value}" for option, value in given if value is not None)


def asked_again(
    cluster: Cluster, whole_nodes_of: str | None, gpu_type: str | None, *, each: int, tasks: int
) -> tuple[str, ...]:
    """srun's options where each of ``tasks`` on a node is to have ``each`` GPUs of its own; ``whole_nodes_of``: the
    partition, where nodes are given whole.

    A type in `--gpus-per-task` leaves tasks without any (seen on 22.05), so only the number is said; but where the step has
    a whole node with other types, too, a number takes the first ones (seen on 20.11 to 26.05).
    """
    if not gpu_type or not other_types_beside(cluster, whole_nodes_of, gpu_type):
        return (f"--gpus-per-task={each}",)
    release, kind = release_of(cluster), gres_type(cluster, gpu_type) or gpu_type
    if release is not None and release < _BINDS_PER_TASK:
        return (f"--gpus-per-task={kind}:{each}",)
    return (f"--gres=gpu:{kind}:{each * tasks}", f"--gpu-bind=per_task:{each}")


def without(words: tuple[str, ...], resources: Resources) -> tuple[str, ...]:
    """Options of srun that a profile or an environment has, but for those that the job says itself."""
    said = {f"--{name.replace('_', '-')}" for name in _FIELDS if getattr(resources, name) is not None}
    return tuple(word for word in words if word.partition("=")[0].replace("_", "-") not in said)


_FIELDS = ("cpu_bind", "gpu_bind", "mem_bind", "hint", "distribution")


def bound(job: Job, cluster: Cluster, draft: Draft, starting: Starting) -> Bound:
    """Return what the tasks are bound to; PlanError where that cannot be."""
    check_starts(job, starting)
    for field in ("cpu_bind", "gpu_bind", "mem_bind"):
        _check_list(job, field, starting)
    seen = _own_gpus(job, draft, starting)
    words = binding_words(job.resources)
    warnings = tuple(_warnings(job, cluster))
    if words or job.resources.gpu_bind:
        return Bound(words, seen, warnings=warnings)
    default = _default(job, cluster, draft, starting)
    if default is None:
        return Bound(warnings=warnings)
    why = "the CPUs beside each GPU, from the profile: one task per GPU on whole nodes"
    return Bound((f"--cpu-bind={default}",), reasons=(Reason.of("CPU binding", default, why),))


def check_starts(job: Job, starting: Starting) -> None:
    """PlanError where something is to be bound that srun does not start, or that is bound twice."""
    for field in ("cpu_bind", "mem_bind", "gpu_bind"):
        value, option = getattr(job.resources, field), f"--{field.replace('_', '-')}"
        if value is None:
            continue
        if any(word.partition("=")[0] == option for word in job.launch.srun_options):
            raise PlanError(
                f"resources.{field} and launch.srun_options both say {option}", hint="keep one of the two"
            )
        if field == "gpu_bind":
            continue  # sbatch hands it on to whatever srun there is
        if job.script is not None or job.steps:
            place = "script:" if job.script is not None else "steps:"
            own = f"srun {option}={value} there" if job.script is not None else (
                f"launch: {{srun_options: [{option}={value}]}} in a step"
            )  # fmt: skip
            raise PlanError(
                f"resources.{field}: {value}: it is for the job's one srun, and {place} has its own",
                hint=f"write {own}",
            )
        if not starting.by_srun:
            raise PlanError(
                f"resources.{field}: {value}: srun binds tasks, and launch: {starting.name} starts the command without it",
                hint=f"use launch: srun, or leave {field} out",
            )


def _check_list(job: Job, field: str, starting: Starting) -> None:
    value = getattr(job.resources, field)
    own = starting.by_srun and job.script is None and not job.steps
    listed = entries(value) if value is not None and own else None
    tasks = starting.tasks_per_node
    if listed is None or listed == tasks:
        return
    one = starting.one_task_each and starting.processes_per_node > 1
    raise PlanError(
        f"resources.{field}: {value}: the list binds {count(listed, 'task')}, and each node has {count(tasks, 'task')}",
        hint=f"{starting.name} is one task that starts the processes of a node; use launch: srun for a task per GPU"
        if one
        else "write an entry for each task of a node; 0*4 stands for four alike",
    )


def _own_gpus(job: Job, draft: Draft, starting: Starting) -> int | None:
    """GPUs that ``gpu_bind`` leaves each task; PlanError where its processes need more, or the node has fewer."""
    value, gpus = job.resources.gpu_bind, draft.layout.gpus_per_node
    seen = gpus_of_a_task(value) if value is not None else None
    if seen is None or not gpus or not starting.by_srun or job.script is not None or job.steps:
        return None
    each = starting.processes_per_node // starting.tasks_per_node
    if each > seen:
        raise PlanError(
            f"resources.gpu_bind: {value} leaves a task {count(seen, 'GPU')}, and {starting.name} starts {each} processes in it",
            hint="leave gpu_bind out, or use launch: srun for one task per GPU",
        )
    if value is not None and "per_task:" in value and seen * starting.tasks_per_node > gpus:
        raise PlanError(
            f"resources.gpu_bind: {value} for {count(starting.tasks_per_node, 'task')} needs "
            f"{seen * starting.tasks_per_node} GPUs on each node, and the job has {gpus}",
            hint=f"write per_task:{max(1, gpus // starting.tasks_per_node)}, or ask for more GPUs",
        )
    return seen


def _warnings(job: Job, cluster: Cluster) -> Iterator[str]:
    release = release_of(cluster)
    if job.resources.cpu_bind == "rank" and release is not None and release >= _OBSOLETE_RANK:
        yield f"resources.cpu_bind: rank is ignored by Slurm {cluster.slurm.release}; cores or rank_ldom bind by rank"


def _default(job: Job, cluster: Cluster, draft: Draft, starting: Starting) -> str | None:
    """Return the profile's list; Slurm holds to one only where the step has every CPU of its nodes (srun(1))."""
    gpus = draft.layout.gpus_per_node
    one_each = starting.by_srun and not starting.one_task_each and starting.tasks_per_node == gpus > 0
    if (
        not one_each
        or not draft.ask.whole
        or job.resources.hint
        or job.script is not None
        or job.steps
        or job.components
    ):
        return None
    lists = {group.cpu_bind for group in draft.groups}
    value = lists.pop() if len(lists) == 1 else None
    if value is None or any(
        group.gpu_count != gpus or (group.cpus and draft.cpus.amount and draft.cpus.amount < group.cpus)
        for group in draft.groups
    ):
        return None
    elsewhere = (
        *cluster.dialect.srun_options,
        *starting.environment.srun_options,
        *job.launch.srun_options,
    )
    said = any(word.startswith(("--cpu-bind", "--cpu_bind")) for word in elsewhere)
    return None if said or entries(value) not in (None, gpus) else value
