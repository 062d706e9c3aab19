"""The reasons of a derived plan, and warnings about what is likely not meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurmgpu.amounts import count
from slurmgpu.launchers import Launching, Started, launcher, started_by
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Reason
from slurmgpu.planning.choosing import Chosen
from slurmgpu.planning.drafting import Draft
from slurmgpu.planning.nodes import is_slice, names_of, other_types_beside, selectable
from slurmgpu.planning.request import SHARED, Layout

if TYPE_CHECKING:
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["array_remarks", "other_types_seen", "reasons", "restart_remarks", "warnings"]


def reasons(
    job: Job, cluster: Cluster, draft: Draft, launching: Launching, processes: int, own_gpus: int | None
) -> Iterator[Reason]:
    """Yield the reasons of the values that are no options of sbatch; ``processes`` on a node, ``own_gpus`` of each task."""
    layout = draft.layout
    if job.script is None and not job.components and not job.steps:
        alone = job.command if launching.launcher == "plain" else None
        yield _processes_reason(
            launching, layout, processes, started_by(alone or (), layout.gpus_per_node, layout.nodes)
        )
    if layout.gpus_per_node:
        yield from _step_reasons(cluster, own_gpus)
    yield from _type_reasons(draft)
    if job.environment is None and job.script is None and cluster.default_environment is not None:
        why = "the profile's default_environment; environment: {} in the job sets up nothing"
        yield Reason.of("environment", cluster.default_environment, why)
    yield from _left_out(job, cluster, draft)


def _processes_reason(
    launching: Launching, layout: Layout, processes: int, started: Started | None
) -> Reason:
    if started is not None:
        return Reason.of("processes", "unknown" if started.total is None else str(started.total), started.why)
    if launching.spawns:
        total, why = max(1, layout.gpus_per_node), "the command starts one for each GPU of its node"
    elif not launcher(launching.launcher).on_every_node and layout.nodes > 1:
        total, why = processes, "on the first of the nodes"
    else:
        total, why = layout.nodes * processes, f"{count(layout.nodes, 'node')} x {processes}"
    return Reason.of("processes", str(total), why)


def _step_reasons(cluster: Cluster, own_gpus: int | None) -> tuple[Reason, ...]:
    """Return who gets the GPUs where the job itself asks for none."""
    if cluster.dialect.gpus != "srun":
        return ()
    if own_gpus is None:
        value, why = "those of the whole node", f"{cluster.name} gives whole nodes, and GPUs to steps"
    else:
        value = f"{own_gpus} for each task"
        why = f"{cluster.name} gives GPUs to the tasks of a step: srun asks for them, not the job"
    return (Reason.of("GPUs", value, why),)


def _type_reasons(draft: Draft) -> tuple[Reason, ...]:
    """Return which type of GPU a job gets that names none, and why."""
    if not draft.layout.gpus_per_node or (draft.gpu_type and not draft.gpu_type_why):
        return ()
    if draft.gpu_type:
        return (Reason.of("GPU type", draft.gpu_type, draft.gpu_type_why),)
    types = names_of(draft.groups)
    if len(types) < 2:
        return ()
    why = "none is asked for: Slurm gives what is free first; gpu_type names one"
    return (Reason.of("GPU type", f"any of {', '.join(types)}", why),)


def _left_out(job: Job, cluster: Cluster, draft: Draft) -> tuple[Reason, ...]:
    """Return the reasons for what is not asked of Slurm."""
    left: list[Reason] = []
    if draft.cpus.amount is None:
        left.append(Reason.of("CPUs", "not asked for", draft.cpus.why))
    if draft.memory.amount is None and not draft.memory.asked:
        left.append(Reason.of("memory", "not asked for", draft.memory.why))
    if job.resources.time is None:
        partition = cluster.partitions.get(draft.partition or "")
        default = partition.limits.default_time if partition else None
        why = (
            f"the partition's default of {default} applies"
            if default
            else "the partition's default applies; -t sets it"
        )
        left.append(Reason.of("time", "not asked for", why))
    return tuple(left)


def warnings(job: Job, cluster: Cluster, chosen: Chosen) -> tuple[str, ...]:
    """Return what is legal and likely not meant."""
    draft = chosen.draft
    found = list(chosen.overruled)
    if draft.account.instead:
        found.append(
            f"account {draft.account.instead} is not for these GPUs; the job charges {draft.account.value}"
        )
    asked = job.resources
    # `gpus: 0` asks for none, and of components another one may have them.
    none_wanted = asked.gpus is not None or asked.gpus_per_node is not None or job.components
    shared = any(gres.name in SHARED for gres in draft.ask.gres)
    if not draft.layout.gpus_per_node and not none_wanted and not shared:
        found.append("no GPU is asked for; --gpus 1, or resources.gpus, asks for one")
    elif draft.layout.gpus_per_node and draft.cpus.amount is None and not cluster.known:
        found.append(
            "no CPUs are asked for, and Slurm's usual default is 1 a task; --cpus-per-gpu asks for more"
        )
    return (*found, *_loose_types(cluster, draft), *_reserved(cluster, draft, asked.reservation))


def _reserved(cluster: Cluster, draft: Draft, name: str | None) -> Iterator[str]:
    """Yield why a job may not start in the reservation that it names. They come and go, so nothing is refused for it."""
    if name is None or "," in name or cluster.slurm.release is None or "reservations" in cluster.hidden:
        return
    look = f"scontrol show reservation {name} shows it as it is now"
    reserved = cluster.reservations.get(name)
    if reserved is None:
        known = ", ".join(cluster.reservations) or "none"
        yield f"reservation {name!r} is none of those that the profile of {cluster.name!r} lists ({known}); {look}"
        return
    account = draft.account.value or cluster.default_account
    barred = {one[1:] for one in reserved.accounts if one.startswith("-")}
    let_in = {one for one in reserved.accounts if not one.startswith("-")}
    if account is not None and (account in barred or (let_in and account not in let_in)):
        yield (
            f"reservation {name!r} is for accounts {', '.join(reserved.accounts)}, and the job charges {account!r}; {look}"
        )
    if reserved.nodes is not None and draft.layout.nodes > reserved.nodes:
        yield f"reservation {name!r} has {count(reserved.nodes, 'node')}, {draft.layout.nodes} are needed; {look}"


def other_types_seen(cluster: Cluster, draft: Draft, *, by_srun: bool) -> tuple[str, ...]:
    """Return a remark where a command of the batch shell sees GPUs that were not asked for.

    A node that is given whole gives those of all types. A step of srun has the job's own (seen on 22.05).
    """
    partition = cluster.partitions.get(draft.partition or "")
    if by_srun or partition is None or not draft.gpu_type:
        return ()
    others = other_types_beside(cluster, draft.partition, draft.gpu_type)
    if not (draft.ask.whole or partition.whole_nodes) or not others:
        return ()
    return (
        f"nodes are given whole, and those with {draft.gpu_type} have {', '.join(sorted(others))} too: the command sees "
        "all of them, in the node's order; launch: srun keeps to those asked for",
    )


def _loose_types(cluster: Cluster, draft: Draft) -> list[str]:
    """Return what Slurm may hand out that is not meant, where no type can be named."""
    layout, types = draft.layout, names_of(draft.groups)
    if draft.ask.gpu_type is not None or not layout.gpus_per_node or len(types) < 2:
        return []
    no_way = f"the profile of {cluster.name!r} has no way to name a type (gpu_types: {{TYPE: {{constraint: ...}}}})"
    slices = names_of(tuple(kind for kind in draft.groups if is_slice(cluster, kind)))
    if slices and slices != types:
        return [f"Slurm may give a slice of a GPU ({', '.join(slices)}), and {no_way}"]
    if layout.nodes > 1:
        selected = [
            kind
            for kind in draft.groups
            if kind.gpu_type and selectable(cluster, draft.groups, kind.gpu_type)
        ]
        why = "no type alone has as many" if selected else no_way
        return [
            f"Slurm may mix {', '.join(types)} over the {layout.nodes} nodes, and {why}: all would wait for the slowest"
        ]
    return []


def restart_remarks(job: Job, script: ScriptFacts | None) -> tuple[str, ...]:
    """Return a warning where a job is to start again at its time limit, and nothing in its script asks for that."""
    if job.restart is None or "timeout" not in job.restart.on or script is None or script.stops_in_time:
        return ()
    return (
        f"restart.on: timeout: nothing in {script.path} stops before the time limit (slurmgpu.training.Run does, or an exit "
        "with code 75): it would be killed there, and not start again",
    )


def array_remarks(job: Job, script: ScriptFacts | None) -> tuple[str, ...]:
    """Return a warning where an array has one task alone, or tasks that nothing tells apart."""
    if job.array is not None and job.array.indices.isdecimal() and int(job.array.indices) > 1:
        number = int(job.array.indices)
        return (f"array {number} is one task, number {number}; 0-{number - 1} makes {number} tasks",)
    if job.array is None or job.array.tasks < 2 or script is None or not script.same_in_all_tasks:
        return ()
    told = (*(job.command or ()), *job.variables.values())
    if any("SLURM_" in word for word in told):
        return ()
    return (
        f"nothing in the command or in {script.path} reads SLURM_ARRAY_TASK_ID: each of the {job.array.tasks} tasks "
        'would do the same; read it in the script: os.environ["SLURM_ARRAY_TASK_ID"]',
    )
