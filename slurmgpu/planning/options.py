"""The sbatch options of a plan, in the dialect of the site and in one stable order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, GpuType
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Launcher, Option
from slurmgpu.models.resources import Resources
from slurmgpu.models.slurm_text import LONGEST_OPTION
from slurmgpu.models.units import Memory
from slurmgpu.planning.placement import Placement, gpu_type_matches
from slurmgpu.planning.request import count
from slurmgpu.planning.sizing import Sized

__all__ = ["Layouted", "options_of", "type_to_pin"]


_AS_ASKED = "as asked"


class Layouted(NamedTuple):
    """What the options are made from."""

    name: str
    placement: Placement
    launcher: Launcher
    tasks_per_node: int
    tasks_why: str
    cpus: Sized
    memory: Sized
    restarts: bool
    restart_why: str
    chdir: str | None
    origins: Mapping[str, str] = {}

    def asked(self, field: str) -> str:
        """The reason of a value that was asked for: where, if that is easily overlooked."""
        origin = self.origins.get(field)
        return f"{_AS_ASKED} in {origin}" if origin else _AS_ASKED


def _identity(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    resources = job.resources
    yield Option.model_construct(
        name="job-name", value=made.name, why=_AS_ASKED if job.name else "from the command"
    )
    if resources.account:
        yield Option.model_construct(
            name="account", value=resources.account, why=made.asked("resources.account")
        )
    if made.placement.partition and cluster.dialect.partition != "never":
        yield Option.model_construct(
            name="partition",
            value=made.placement.partition,
            why=made.asked("resources.partition") if resources.partition else made.placement.why,
        )
    if resources.qos:
        yield Option.model_construct(name="qos", value=resources.qos, why=made.asked("resources.qos"))
    if resources.reservation:
        yield Option.model_construct(
            name="reservation", value=resources.reservation, why=made.asked("resources.reservation")
        )


def _constraint(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    asked = job.resources.constraint
    wanted = type_to_pin(job.resources, cluster, made.placement)
    _, known = _gpu_type(cluster, made.placement, wanted)
    feature = known.constraint if known else None
    if feature and cluster.dialect.gpu_type_by == "request" and known and known.gres == wanted:
        feature = None
    if not feature:
        if asked:
            yield Option.model_construct(
                name="constraint", value=asked, why=made.asked("resources.constraint")
            )
        return
    if not asked:
        yield Option.model_construct(name="constraint", value=feature, why=f"selects GPUs of type {wanted}")
        return
    both = "&".join(f"({one})" if "|" in one else one for one in (asked, feature))
    yield Option.model_construct(
        name="constraint", value=both, why=f"as asked, and {feature} selects GPUs of type {wanted}"
    )


def type_to_pin(resources: Resources, cluster: Cluster, placement: Placement) -> str | None:
    """The type that must be named: the one asked for, or one with the memory asked for; None: any will do."""
    wanted = resources.wanted_gpu_type
    if wanted or resources.gpu_memory is None or not placement.groups:
        return wanted
    types = {group.gpu_type for group in placement.groups}
    everywhere = cluster.partitions[placement.partition].nodes if placement.partition else ()
    if all(group.gpu_type in types for group in everywhere if group.gpus != 0):
        return None
    # Of several types the one with the most nodes: it starts soonest.
    return max(placement.groups, key=lambda group: group.count or 0).gpu_type


def _gpu_type(
    cluster: Cluster, placement: Placement, wanted: str | None
) -> tuple[str | None, GpuType | None]:
    """The profile's entry for a type that a job names by the profile's name for it, or by its gres type."""
    if wanted is None or wanted in cluster.gpu_types:
        return wanted, cluster.gpu_types.get(wanted or "")
    here = {
        group.gpu_type for group in placement.groups if gpu_type_matches(cluster, wanted, group.gpu_type)
    } & set(cluster.gpu_types)
    name = next(iter(here)) if len(here) == 1 else None
    return name, cluster.gpu_types.get(name or "")


def _gres_type(job: Job, cluster: Cluster, made: Layouted) -> str | None:
    wanted = type_to_pin(job.resources, cluster, made.placement)
    if wanted is None or cluster.dialect.gpu_type_by == "constraint":
        return None
    known = cluster.gpu_types.get(wanted)
    return wanted if known is None else known.gres or (None if known.constraint else wanted)


def _check_type_is_named(job: Job, cluster: Cluster, made: Layouted, options: tuple[Option, ...]) -> None:
    """PlanError when the site's dialect leaves no way to say which type, and the partition has others."""
    wanted = type_to_pin(job.resources, cluster, made.placement)
    by_request = cluster.dialect.gpus != "none" and _gres_type(job, cluster, made) is not None
    if wanted is None or by_request or any(option.name == "constraint" for option in options):
        return
    partition = cluster.partitions.get(made.placement.partition or "")
    groups = [group for group in partition.nodes if group.gpus != 0] if partition else []
    if groups and all(gpu_type_matches(cluster, wanted, group.gpu_type) for group in groups):
        return
    raise PlanError(
        f"GPU type {wanted!r}: {cluster.name!r} does not take a type in the request, and its profile names no "
        "constraint that selects this one",
        hint=f"give the constraint yourself (-C), or add gpu_types: {{{wanted}: {{constraint: ...}}}} to the profile",
    )


def _size(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    layout = made.placement.layout
    yield Option.model_construct(name="nodes", value=str(layout.nodes), why=layout.why)
    if cluster.dialect.tasks:
        yield Option.model_construct(
            name="ntasks-per-node", value=str(made.tasks_per_node), why=made.tasks_why
        )
    yield from _gpus(job, cluster, made)
    yield from _cpus(cluster, made)
    yield from _memory(cluster, made)
    if job.resources.exclusive or cluster.dialect.whole_nodes:
        yield Option.model_construct(
            name="exclusive",
            value=None,
            why=_AS_ASKED if job.resources.exclusive else "nodes are given whole here",
        )


def _gpus(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    layout, style = made.placement.layout, cluster.dialect.gpus
    kind = _gres_type(job, cluster, made)
    others = [str(gres) for gres in job.resources.gres]

    def typed(count: int) -> str:
        return f"{kind}:{count}" if kind else str(count)

    per_node = f"{layout.gpus_per_node} on each node"
    if layout.gpus_per_node and style == "gres":
        value = ",".join([f"gpu:{typed(layout.gpus_per_node)}", *others])
        yield Option.model_construct(
            name="gres", value=value, why=per_node + (", and the resources asked for" if others else "")
        )
        return
    if layout.gpus_per_node and style == "gpus-per-node":
        yield Option.model_construct(name="gpus-per-node", value=typed(layout.gpus_per_node), why=per_node)
    elif layout.gpus_per_node and style == "gpus":
        total = layout.nodes * layout.gpus_per_node
        yield Option.model_construct(
            name="gpus", value=typed(total), why=f"{total} in all, as this site counts"
        )
    elif layout.gpus_per_node and style == "gpus-per-task":
        tasks = made.tasks_per_node if cluster.dialect.tasks else 1
        if layout.gpus_per_node % tasks:
            raise PlanError(
                f"resources.tasks_per_node: {tasks}: {cluster.name!r} gives each task its own GPUs, and "
                f"{count(layout.gpus_per_node, 'GPU')} a node cannot be split evenly over {tasks} tasks",
                hint="leave tasks_per_node out for one task per GPU",
            )
        yield Option.model_construct(
            name="gpus-per-task",
            value=typed(layout.gpus_per_node // tasks),
            why="this site counts GPUs by task",
        )
    if others:
        yield Option.model_construct(name="gres", value=",".join(others), why=_AS_ASKED)


def _cpus(cluster: Cluster, made: Layouted) -> Iterator[Option]:
    if made.cpus.amount is None:
        return
    gpus = made.placement.layout.gpus_per_node
    if cluster.dialect.cpus == "cpus-per-gpu" and gpus:
        yield Option.model_construct(
            name="cpus-per-gpu", value=str(made.cpus.amount // gpus), why=made.cpus.why
        )
    elif cluster.dialect.cpus != "none":
        # Where tasks may not be named, Slurm counts one a node, and srun divides that one's CPUs.
        tasks = made.tasks_per_node if cluster.dialect.tasks else 1
        yield Option.model_construct(
            name="cpus-per-task", value=str(made.cpus.amount // tasks), why=made.cpus.why
        )


def _share(memory: Sized, parts: int) -> Memory:
    """One of equal parts in whole MiB: what was asked for is not rounded down, what was derived not up."""
    mib = memory.amount or 0
    return Memory(-(-mib // parts) if memory.asked else mib // parts)


def _memory(cluster: Cluster, made: Layouted) -> Iterator[Option]:
    mib, style = made.memory.amount, cluster.dialect.memory
    if mib is None:
        return
    if style == "mem" or mib == 0:
        yield Option.model_construct(name="mem", value=str(Memory(mib)), why=made.memory.why)
    elif style == "mem-per-gpu" and made.placement.layout.gpus_per_node:
        share = _share(made.memory, made.placement.layout.gpus_per_node)
        yield Option.model_construct(name="mem-per-gpu", value=str(share), why=made.memory.why)
    elif style == "mem-per-cpu" and made.cpus.amount:
        yield Option.model_construct(
            name="mem-per-cpu", value=str(_share(made.memory, made.cpus.amount)), why=made.memory.why
        )
    elif style != "none":
        yield Option.model_construct(name="mem", value=str(Memory(mib)), why=made.memory.why)


def _life(job: Job, made: Layouted) -> Iterator[Option]:
    if job.resources.time:
        yield Option.model_construct(
            name="time", value=str(job.resources.time), why=made.asked("resources.time")
        )
    if job.array:
        yield Option.model_construct(name="array", value=str(job.array), why=_AS_ASKED)
    if job.dependency:
        yield Option.model_construct(name="dependency", value=str(job.dependency), why=_AS_ASKED)
    if made.restarts:
        yield Option.model_construct(name="requeue", value=None, why=made.restart_why)
        yield Option.model_construct(name="open-mode", value="append", why="a restarted job keeps its log")
    else:
        yield Option.model_construct(name="no-requeue", value=None, why=made.restart_why)
    if made.chdir:
        yield Option.model_construct(
            name="chdir", value=made.chdir, why="the work folder, so that relative log files are found"
        )
    if job.output:
        yield Option.model_construct(name="output", value=job.output, why=_AS_ASKED)
    if job.error:
        yield Option.model_construct(name="error", value=job.error, why=_AS_ASKED)
    if job.mail:
        yield Option.model_construct(name="mail-type", value=",".join(job.mail.type), why=_AS_ASKED)
        if job.mail.user:
            yield Option.model_construct(name="mail-user", value=job.mail.user, why=_AS_ASKED)
    if job.comment:
        yield Option.model_construct(name="comment", value=job.comment, why=_AS_ASKED)


def _others(job: Job, cluster: Cluster) -> Iterator[Option]:
    merged: dict[str, tuple[str | int | bool, str]] = {
        name: (value, f"{cluster.name} wants it") for name, value in cluster.dialect.options.items()
    }
    merged.update({name: (value, _AS_ASKED) for name, value in job.sbatch.items()})
    for name, (value, why) in merged.items():
        if value is not False:
            yield Option.model_construct(name=name, value=None if value is True else str(value), why=why)


def options_of(job: Job, cluster: Cluster, made: Layouted) -> tuple[Option, ...]:
    """Every sbatch option; PlanError when one that the site requires is missing."""
    options = (
        *_identity(job, cluster, made),
        *_constraint(job, cluster, made),
        *_size(job, cluster, made),
        *_life(job, made),
        *_others(job, cluster),
    )
    _check_type_is_named(job, cluster, made, options)
    for option in options:
        # sbatch refuses more ("Pathname of a file, directory or other parameter too long", 22.05).
        if len((option.value or "").encode("utf-8")) > LONGEST_OPTION:
            raise PlanError(
                f"--{option.name}: its value has more than {LONGEST_OPTION} bytes, which sbatch refuses; shorten it"
            )
    given = {option.name for option in options}
    for name in cluster.dialect.required:
        if name not in given:
            short = {
                "account": "-A/",
                "partition": "-p/",
                "qos": "-q/",
                "time": "-t/",
                "constraint": "-C/",
            }.get(name, "")
            raise PlanError(
                f"resources.{name} is missing: cluster {cluster.name!r} refuses jobs without it",
                hint=f"give {short}--{name}, or resources.{name} in the job file, or set it once for all jobs: "
                f"`job: {{resources: {{{name}: ...}}}}` in the settings (slurmgpu config show says where)",
            )
    return options
