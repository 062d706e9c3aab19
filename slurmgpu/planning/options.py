"""The sbatch options of a plan, in the dialect of the site and in one stable order; others pass as they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.errors import PlanError
from slurmgpu.lines.slurm import SBATCH, expand
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.options import OWN_OPTIONS, ROWS
from slurmgpu.models.plan import Option
from slurmgpu.models.site import Reservation
from slurmgpu.models.units import LONGEST_OPTION, Memory
from slurmgpu.planning.accounts import missing_options, refused_options
from slurmgpu.planning.drafting import Draft
from slurmgpu.planning.nodes import cpus_beside_gpus, cpus_with_each_gpu, entry_of, gres_type, joined
from slurmgpu.planning.request import Problem
from slurmgpu.planning.sizing import Sized

__all__ = ["Layouted", "options_of", "partition_named", "passed_problems", "unjudged"]


_AS_ASKED = "as asked"
_NAMELESS = ("from the command", "a script has no name of its own; name: gives one")


class Layouted(NamedTuple):
    """The values that the options are made from."""

    name: str
    draft: Draft
    partition_why: str
    tasks_why: str
    environment: Environment
    restarts: bool
    restart_why: str
    chdir: str | None
    origins: Mapping[str, str] = {}

    def asked(self, field: str) -> str:
        """Return the reason of a value that was asked for: where, if that is easily overlooked."""
        origin = self.origins.get(field)
        return f"{_AS_ASKED} in {origin}" if origin else _AS_ASKED


def partition_named(cluster: Cluster, asked: str | None, partition: str | None) -> str | None:
    """Return the partition as the options name it; None where none is named."""
    style = cluster.dialect.partition
    if (style == "never" and (asked is None or partition in cluster.partitions)) or (
        style == "optional" and asked is None and cluster.default_partition in (None, partition)
    ):
        return None
    return partition


def _identity(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    resources, draft = job.resources, made.draft
    yield Option.of("job-name", made.name, _AS_ASKED if job.name else _NAMELESS[job.script is not None])
    if draft.account.value:
        why = made.asked("resources.account") if draft.account.asked else draft.account.why
        yield Option.of("account", draft.account.value, why + draft.account.ending)
    partition = partition_named(cluster, resources.partition, draft.partition)
    if partition:
        why = made.asked("resources.partition") if partition == resources.partition else made.partition_why
        yield Option.of("partition", partition, why)
    if draft.qos.value:
        why = made.asked("resources.qos") if draft.qos.asked else draft.qos.why
        yield Option.of("qos", draft.qos.value, why)
    if resources.reservation:
        yield Option.of("reservation", resources.reservation, made.asked("resources.reservation"))


def _constraint(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    asked = job.resources.constraint
    wanted = made.draft.gpu_type
    _, known = entry_of(cluster, made.draft.groups, wanted)
    feature = known.constraint if known else None
    if feature and cluster.dialect.gpu_type_by == "request" and known and known.gres == wanted:
        feature = None
    value = joined(made.draft.constraint, feature)
    if value is None:
        return
    reasons = [made.asked("resources.constraint")] if asked else []
    reasons += ["what jobs there name"] if made.draft.constraint != asked else []
    reasons += [f"{feature} selects GPUs of type {wanted}"] if feature else []
    yield Option.of("constraint", value, ", and ".join(reasons))


def _size(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    layout = made.draft.layout
    yield Option.of("nodes", str(layout.nodes), layout.why)
    if cluster.dialect.tasks:
        yield Option.of("ntasks-per-node", str(made.draft.tasks_per_node), made.tasks_why)
        if layout.nodes > 1 and str(job.resources.distribution).startswith("plane="):
            total = str(layout.nodes * made.draft.tasks_per_node)
            yield Option.of("ntasks", total, "Slurm 26.05 holds planes against this number alone")
    yield from _segment(job, cluster, made)
    yield from _gpus(job, cluster, made)
    yield from _cpus(cluster, made)
    yield from _memory(job, cluster, made)
    qos = cluster.qos.get(made.draft.qos.value or "")
    if job.resources.exclusive:
        yield Option.of("exclusive", None, _AS_ASKED)
    elif qos is not None and qos.exclusive:
        yield Option.of("exclusive", None, f"QOS {made.draft.qos.value} gives whole nodes")
    elif cluster.dialect.whole_nodes:
        yield Option.of("exclusive", None, "nodes are given whole here")


def _segment(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    """Nodes that share a block; Slurm refuses a size that the job's nodes are no multiple of (sbatch(1), --segment)."""
    nodes, asked = made.draft.layout.nodes, job.resources.segment
    if asked is not None:
        if nodes % asked:
            fitting = " or ".join(
                str(one) for one in (nodes // asked * asked, -(-nodes // asked) * asked) if one
            )
            raise PlanError(
                f"resources.segment: {asked}: the job's {count(nodes, 'node')} cannot be split into segments of {asked}",
                hint=f"use {fitting} nodes, or a segment that divides {nodes}",
            )
        yield Option.of("segment", str(asked), made.asked("resources.segment"))
        return
    partition = cluster.partitions.get(made.draft.partition or "")
    block = partition.segment if partition else None
    if block is None or nodes < 2 or "segment" in job.sbatch:
        return
    size = max(one for one in range(1, min(block, nodes) + 1) if nodes % one == 0)
    if size > 1:
        yield Option.of("segment", str(size), f"partition {made.draft.partition} has blocks of {block} nodes")


def _gpus(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    layout, style = made.draft.layout, cluster.dialect.gpus
    kind = gres_type(cluster, made.draft.gpu_type)
    others = [str(gres) for gres in job.resources.gres]
    if job.resources.gpu_memory is not None and cluster.dialect.gpu_memory_gres and layout.gpus_per_node:
        gib = -(-job.resources.gpu_memory.mib // 1024)
        others.append(f"{cluster.dialect.gpu_memory_gres}:{gib}g")

    def typed(count: int) -> str:
        return f"{kind}:{count}" if kind else str(count)

    if layout.gpus is not None and style not in ("srun", "none"):
        yield Option.of("gpus", typed(layout.gpus), layout.why)
        if others:
            yield Option.of("gres", ",".join(others), _AS_ASKED)
        return
    per_node = f"{layout.gpus_per_node} on each node"
    if layout.gpus_per_node and style == "gres":
        value = ",".join([f"gpu:{typed(layout.gpus_per_node)}", *others])
        yield Option.of("gres", value, per_node + (", and the resources asked for" if others else ""))
        return
    if layout.gpus_per_node and style == "gpus-per-node":
        yield Option.of("gpus-per-node", typed(layout.gpus_per_node), per_node)
    elif layout.gpus_per_node and style == "gpus":
        total = layout.nodes * layout.gpus_per_node
        yield Option.of("gpus", typed(total), f"{total} in all, as this site counts")
        # Slurm splits a total over nodes as it likes (7 and 1 of 8, seen on 22.05), and the launcher counts on
        # equal shares: a share that is less than a node is said as well.
        free = layout.nodes > 1 and any(
            group.gpu_count != layout.gpus_per_node for group in made.draft.groups
        )
        # Of nodes with several types Slurm takes one with as many GPUs in all, finds too few of the type, and the job waits
        # for ever on an empty cluster (seen on 26.05).
        partition = cluster.partitions.get(made.draft.partition or "")
        several = kind is not None and any(
            len(one.kinds) > 1 for one in (partition.nodes if partition else ())
        )
        if (free or several) and "gpus-per-node" not in cluster.dialect.forbidden:
            why = "equal shares of the nodes" if free else "as many of one type on a node"
            yield Option.of("gpus-per-node", typed(layout.gpus_per_node), why)
    elif layout.gpus_per_node and style == "gpus-per-task":
        tasks = made.draft.tasks_per_node if cluster.dialect.tasks else 1
        yield Option.of(
            "gpus-per-task", typed(layout.gpus_per_node // tasks), "this site counts GPUs by task"
        )
    if others:
        yield Option.of("gres", ",".join(others), _AS_ASKED)


def _cpus(cluster: Cluster, made: Layouted) -> Iterator[Option]:
    if made.draft.cpus.amount is None:
        return
    gpus = made.draft.layout.gpus_per_node
    if cluster.dialect.cpus == "cpus-per-gpu" and gpus:
        yield Option.of("cpus-per-gpu", str(made.draft.cpus.amount // gpus), made.draft.cpus.why)
    elif cluster.dialect.cpus not in ("none", "srun"):
        # Where tasks may not be named, Slurm counts one a node, and srun divides that one's CPUs.
        tasks = made.draft.tasks_per_node if cluster.dialect.tasks else 1
        yield Option.of("cpus-per-task", str(made.draft.cpus.amount // tasks), made.draft.cpus.why)
        with_each = cpus_with_each_gpu(cluster, cluster.partitions.get(made.draft.partition or ""))
        beside = [cpus_beside_gpus(kind, made.draft.ask) for kind in made.draft.groups] or [
            (made.draft.cpus.amount, gpus)
        ]
        at_most = min((cpus // gpus for cpus, gpus in beside if gpus), default=0)
        if with_each and gpus and at_most < with_each:
            why = f"Slurm {cluster.slurm.release} would want {with_each} with each GPU, and start nothing"
            yield Option.of("cpus-per-gpu", str(max(1, at_most)), why)


def _share(memory: Sized, parts: int) -> Memory:
    """One of equal parts in whole MiB: what was asked for is not rounded down, what was derived not up."""
    mib = memory.amount or 0
    return Memory(-(-mib // parts) if memory.asked else mib // parts)


def _memory(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    mib, style = made.draft.memory.amount, cluster.dialect.memory
    if mib is None:
        if made.draft.memory.asked:
            yield Option.of("mem-per-cpu", str(job.resources.memory_per_cpu), made.draft.memory.why)
        return
    gpus, cpus, whole = made.draft.layout.gpus_per_node, made.draft.cpus.amount, made.draft.ask.whole
    # Of a node that is given whole, GPUs and CPUs that were not asked for would count, too (seen on 22.05).
    all_gpus = not whole or all(group.gpu_count == gpus for group in made.draft.groups)
    all_cpus = not whole or all(group.cpus == cpus for group in made.draft.groups)
    if mib and style == "mem-per-gpu" and gpus and all_gpus:
        yield Option.of("mem-per-gpu", str(_share(made.draft.memory, gpus)), made.draft.memory.why)
    elif mib and style == "mem-per-cpu" and cpus and all_cpus:
        yield Option.of("mem-per-cpu", str(_share(made.draft.memory, cpus)), made.draft.memory.why)
    elif style != "none" or mib == 0:
        yield Option.of("mem", str(Memory(mib)), made.draft.memory.why)


def _life(job: Job, made: Layouted) -> Iterator[Option]:
    if job.resources.time:
        yield Option.of("time", str(job.resources.time), made.asked("resources.time"))
    if job.array:
        yield Option.of("array", str(job.array), _AS_ASKED)
    if job.dependency:
        yield Option.of("dependency", str(job.dependency), _AS_ASKED)
    if made.restarts:
        yield Option.of("requeue", None, made.restart_why)
        yield Option.of("open-mode", "append", "a restarted job keeps its log")
    else:
        yield Option.of("no-requeue", None, made.restart_why)
    if made.chdir:
        yield Option.of("chdir", made.chdir, "the work folder, so that relative log files are found")
    if job.output:
        yield Option.of("output", job.output, _AS_ASKED)
    if job.error:
        yield Option.of("error", job.error, _AS_ASKED)
    if job.mail:
        yield Option.of("mail-type", ",".join(job.mail.type), _AS_ASKED)
        if job.mail.user:
            yield Option.of("mail-user", job.mail.user, _AS_ASKED)


def _passed(job: Job, made: Layouted) -> Iterator[Option]:
    """Yield what a job's fields say without anything to derive."""
    for row in ROWS:
        if not row.passed or row.option is None:
            continue
        value: object = job
        for part in row.key.split("."):
            value = getattr(value, part)
        if value is not None and value is not False:
            text = None if value is True else str(value)
            yield Option.of(row.option, text, made.asked(row.key))


def _others(job: Job, cluster: Cluster, made: Layouted) -> Iterator[Option]:
    partition = cluster.partitions.get(made.draft.partition or "")
    merged: dict[str, tuple[str | int | bool, str]] = {}
    for options, why in (
        (cluster.dialect.options, f"{cluster.name} wants it"),
        (partition.options if partition else {}, f"partition {made.draft.partition} wants it"),
        (made.environment.sbatch, "the environment wants it"),
        (job.sbatch, _AS_ASKED),
    ):
        merged.update({name: (value, why) for name, value in options.items()})
    own = {option.name for option in _passed(job, made)}
    for name, (value, why) in merged.items():
        if value is not False and name not in own:
            yield Option.of(name, None if value is True else str(value), why)


def _is_forbidden(option: Option, job: Job, cluster: Cluster) -> bool:
    """Return True if the site refuses an option: one that was derived is left out, one that was asked for is an error."""
    why = refused_options(cluster).get(option.name)
    if why is None:
        return False
    field = OWN_OPTIONS.get(option.name, f"sbatch.{option.name}")
    value: object = job
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    if value:
        raise PlanError(f"{field}: {value}: {cluster.name!r} {why}", hint=f"leave {field} out")
    return True


def options_of(job: Job, cluster: Cluster, made: Layouted) -> tuple[Option, ...]:
    """Return every sbatch option; PlanError when one that the site requires is missing."""
    options = (
        *_identity(job, cluster, made),
        *_constraint(job, cluster, made),
        *_size(job, cluster, made),
        *_life(job, made),
        *_passed(job, made),
        *_others(job, cluster, made),
    )
    options = tuple(option for option in options if not _is_forbidden(option, job, cluster))
    for option in options:
        # sbatch refuses more ("Pathname of a file, directory or other parameter too long", 22.05).
        if len((option.value or "").encode("utf-8")) > LONGEST_OPTION:
            raise PlanError(
                f"--{option.name}: its value has more than {LONGEST_OPTION} bytes, which sbatch refuses; shorten it"
            )
    for name in missing_options(cluster, {option.name for option in options}):
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


_MOST_NODES = 20_000
"""Of a larger cluster the names of nodes are not compared: every plan would pay for it."""


def passed_problems(
    cluster: Cluster, partitions: Sequence[str], options: Mapping[str, str | None]
) -> Iterator[Problem]:
    """Yield why Slurm would refuse some options of a job in these partitions, as far as the profile has read them from Slurm."""
    if not cluster.complete:
        return
    here = _names(cluster, partitions)
    if here:
        yield from _nodes(cluster, partitions, here, options)
    name = options.get("reservation") or ""
    reserved = cluster.reservations.get(name)
    held = _reserved(cluster, reserved) if reserved else set()
    if reserved and here and held and not here & held:
        where, whose = (
            " and ".join(partitions),
            f" of partition {reserved.partition!r}" if reserved.partition else "",
        )
        said = f"has nodes{whose}, and partition {where!r} has none of these: Slurm refuses the job"
        yield Problem(f"reservation {name!r}", said, "partition", "reservation")
    if cluster.licenses:
        for entry in re.split(r"[,;|]", options.get("licenses") or ""):
            name, _, number = entry.strip().partition(":")
            there = cluster.licenses.get(name)
            if name and there is None and name.partition("@")[0] not in cluster.licenses:
                yield Problem(
                    f"cluster {cluster.name!r}",
                    f"has no licence {name!r}; it has {', '.join(cluster.licenses)}",
                    "licenses",
                    "licenses",
                )
            elif there is not None and number.isdecimal() and int(number) > there:
                yield Problem(
                    f"cluster {cluster.name!r}",
                    f"has {there} of licence {name!r}, {number} are asked for",
                    "licenses",
                    "licenses",
                )


def _reserved(cluster: Cluster, reserved: Reservation) -> set[str]:
    """Return the nodes of a reservation: those that it names, or else those of its partition; none where neither is known."""
    if reserved.names:
        return set(expand(reserved.names))
    return _names(cluster, [reserved.partition]) if reserved.partition in cluster.partitions else set()


def _names(cluster: Cluster, partitions: Collection[str]) -> set[str]:
    """Return the nodes of some partitions; none where a name is not known."""
    groups = [group for name in partitions for group in cluster.partitions[name].nodes]
    if not groups or not all(group.names for group in groups):
        return set()
    if sum(group.count or 0 for group in groups) > _MOST_NODES:
        return set()
    return {host for group in groups for host in expand(group.names or "")}


def _nodes(
    cluster: Cluster, partitions: Sequence[str], here: set[str], options: Mapping[str, str | None]
) -> Iterator[Problem]:
    subject = f"partition {' and '.join(partitions)}"
    wanted, left_out = (
        [] if re.search(r"[/$%]", options.get(name) or "") else expand(options.get(name) or "")
        for name in ("nodelist", "exclude")
    )
    strangers = [host for host in wanted if host not in here]
    everywhere = (here | _names(cluster, list(cluster.partitions))) if left_out else set()
    if strangers:
        yield Problem(subject, f"has no node {', '.join(strangers[:5])}", "nodes", "nodelist")
    unknown = [host for host in left_out if host not in everywhere]
    if unknown and everywhere > here:
        yield Problem(
            f"cluster {cluster.name!r}", f"has no node {', '.join(unknown[:5])}", "nodes", "exclude"
        )
    both = set(wanted) & set(left_out)
    if both:
        said = f"is to leave out {', '.join(sorted(both)[:5])}, which nodelist wants"
        yield Problem("the job", said, "nodes", "exclude")
    nodes = options.get("nodes") or "1"
    remaining = len(here - set(left_out))
    if left_out and nodes.isdecimal() and remaining < int(nodes):
        said = f"has {count(len(here), 'node')}, and exclude leaves {remaining}; {nodes} are needed"
        yield Problem(subject, said, "nodes", "exclude")


_BY_SLURM_ALONE = frozenset({
    "bb", "bbf", "begin", "cluster-constraint", "clusters", "core-spec", "cores-per-socket", "deadline", "exclude",
    "extra-node-info", "gid", "gpu-freq", "licenses", "mcs-label", "mincpus", "network", "nodefile", "nodelist",
    "ntasks-per-core", "ntasks-per-socket", "power", "prefer", "priority", "reservation", "resv-ports", "sockets-per-node",
    "switches", "thread-spec", "threads-per-core", "tmp", "tres-per-task", "uid", "use-min-nodes", "wckey",
})  # fmt: skip
"""Options for which Slurm may refuse a job, by what a profile does not have."""


def unjudged(cluster: Cluster, partitions: Sequence[str], options: Mapping[str, str | None]) -> list[str]:
    """Return the options that only Slurm can judge: by values that the profile does not have, or that sbatch does not know."""
    judged = set()
    if cluster.complete:
        judged = {"licenses"} if cluster.licenses else set()
        judged |= {"nodelist", "exclude"} if _names(cluster, partitions) else set()
        judged |= {"reservation"} if "reservations" not in cluster.hidden else set()
    return [
        name
        for name in options
        if (name in _BY_SLURM_ALONE and name not in judged) or name not in SBATCH.options
    ]
