"""Options that sbatch gets as they are: those that a profile can judge, and those that only Slurm can."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from slurmgpu.lines.hostlist import expand
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.site import Reservation
from slurmgpu.planning.request import Problem, count

__all__ = ["passed_problems", "unjudged"]

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
    """The nodes of a reservation: those that it names, or else those of its partition; none where neither is known."""
    if reserved.names:
        return set(expand(reserved.names))
    return _names(cluster, [reserved.partition]) if reserved.partition in cluster.partitions else set()


def _names(cluster: Cluster, partitions: Collection[str]) -> set[str]:
    """The nodes of some partitions; none where a name is not known."""
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
