"""Rules that know the cluster: what its profile says against what the script asks for.

All of them see the request as ``_places`` gives it: the partitions that the profile describes. A judge of whole requests
can take their place here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.scripts.rules.asked import Asked, is_placeholder
from slurmgpu.scripts.rules.base import Hit, rule
from slurmgpu.scripts.rules.view import View

__all__ = ["RULES"]


class _Place(NamedTuple):
    """Partitions that a component names (or gets), as the profile describes them."""

    asked: Asked
    names: list[str]
    partitions: list[Partition]

    @property
    def spelled(self) -> str:
        return f"partition{'s' * (len(self.names) > 1)} {', '.join(self.names)}"

    @property
    def groups(self) -> list[NodeGroup] | None:
        """The kinds of node; None where a partition's are not described."""
        if not all(partition.nodes for partition in self.partitions):
            return None
        return [group for partition in self.partitions for group in partition.nodes]


def _cluster(view: View) -> Cluster | None:
    cluster = view.facts.cluster
    return cluster if cluster is not None and cluster.known else None


def _named(asked: Asked) -> list[str]:
    value = asked.value("partition") or ""
    return [name for name in value.split(",") if name and "$" not in name and not is_placeholder(name)]


def _places(view: View) -> Iterator[_Place]:
    """The components whose partitions are all described."""
    cluster = _cluster(view)
    if cluster is None:
        return
    for asked in view.components:
        names = _named(asked)
        if not names and "partition" not in asked.options and cluster.default_partition:
            names = [cluster.default_partition]
        if names and all(name in cluster.partitions for name in names):
            yield _Place(asked, names, [cluster.partitions[name] for name in names])


@rule("unknown-partition", "error", "A partition that the cluster does not have.", needs_cluster=True)
def unknown_partition(view: View) -> Iterator[Hit]:
    cluster = _cluster(view)
    for asked in view.components if cluster else ():
        for name in _named(asked):
            assert cluster is not None
            if name not in cluster.partitions:
                near = difflib.get_close_matches(name, cluster.partitions, n=1)
                known = ", ".join(sorted(cluster.partitions))
                fix = f"did you mean {near[0]}?" if near else f"use one of: {known}"
                yield Hit(asked.line("partition"), f"{cluster.name} has no partition {name!r}", fix)


@rule("over-time", "error", "More time than the partition allows.", needs_cluster=True)
def over_time(view: View) -> Iterator[Hit]:
    for place in _places(view):
        limits = [partition.limits.max_time for partition in place.partitions]
        time = place.asked.time
        if time is not None and all(limit is not None and time.exceeds(limit) for limit in limits):
            longest = max((one for one in limits if one is not None), key=lambda one: one.seconds or 0)
            yield Hit(
                place.asked.line("time"),
                f"{place.spelled}: at most {longest}, and {time} is asked for; such a job waits for ever, or is refused",
                f"ask for --time={longest} or less, and let the job continue from its checkpoint",
            )


@rule("over-nodes", "error", "More nodes than the partition allows or has.", needs_cluster=True)
def over_nodes(view: View) -> Iterator[Hit]:
    for place in _places(view):
        nodes = place.asked.nodes
        limits = [_most_nodes(partition) for partition in place.partitions]
        if nodes and all(limit is not None and nodes > limit for limit in limits):
            most = max(limit for limit in limits if limit is not None)
            yield Hit(
                place.asked.line("nodes"),
                f"{place.spelled}: at most {most} nodes, and {nodes} are asked for",
                f"ask for {most} or fewer",
            )


def _most_nodes(partition: Partition) -> int | None:
    counts = [group.count for group in partition.nodes]
    there = sum(count or 0 for count in counts) if counts and None not in counts else None
    known = [one for one in (partition.limits.max_nodes, there) if one is not None]
    return min(known, default=None)


@rule("unknown-gpu-type", "error", "A type of GPU that the partition does not have.", needs_cluster=True)
def unknown_gpu_type(view: View) -> Iterator[Hit]:
    cluster = _cluster(view)
    for place in _places(view):
        assert cluster is not None
        if place.groups is None or not place.asked.gpu_types:
            continue
        there = {group.gpu_type for group in place.groups if group.gpus != 0}
        if None in there or not there:
            continue
        names = {
            (cluster.gpu_types[kind].gres or kind) if kind in cluster.gpu_types else kind
            for kind in there
            if kind
        }
        for kind in sorted(place.asked.gpu_types - names - {one for one in there if one}):
            yield Hit(
                place.asked.line(*place.asked.gpu_options),
                f"{place.spelled}: no GPU of type {kind!r}",
                f"ask for one of: {', '.join(sorted(names))}",
            )


@rule("too-many-gpus", "error", "More GPUs on a node than any has.", needs_cluster=True)
def too_many_gpus(view: View) -> Iterator[Hit]:
    for place in _places(view):
        gpus = place.asked.gpus_per_node
        if not gpus or place.groups is None or any(group.gpus is None for group in place.groups):
            continue
        if place.asked.gpu_options == ["gpus"] and place.asked.nodes is None:
            continue  # Slurm spreads them over nodes
        most = max(group.gpus or 0 for group in place.groups)
        if most and gpus > most:
            yield Hit(
                place.asked.line(*place.asked.gpu_options),
                f"{place.spelled}: at most {most} GPUs on a node, and {gpus} are asked for",
                f"ask for more nodes, with {most} or fewer on each",
            )


@rule(
    "gpus-not-there",
    "error",
    "GPUs on a partition without any, or none where one is required.",
    needs_cluster=True,
)
def gpus_not_there(view: View) -> Iterator[Hit]:
    cluster = _cluster(view)
    for place in _places(view):
        assert cluster is not None
        asks = bool(place.asked.gpu_options)
        with_gpus = [
            name
            for name, partition in cluster.partitions.items()
            if any(group.gpus != 0 for group in partition.nodes)
        ]
        if asks and place.groups is not None and all(group.gpus == 0 for group in place.groups):
            fix = f"use one of: {', '.join(with_gpus)}" if with_gpus else "drop the GPUs"
            yield Hit(place.asked.line(*place.asked.gpu_options), f"{place.spelled}: no GPUs there", fix)
        elif not asks and all(partition.requires_gpu for partition in place.partitions):
            yield Hit(
                place.asked.line("partition"),
                f"{place.spelled}: jobs without a GPU are refused there",
                "ask for a GPU, or use another partition",
            )


@rule("cpu-share", "warning", "CPUs far from the GPUs' share of the node.", needs_cluster=True)
def cpu_share(view: View) -> Iterator[Hit]:
    for place in _places(view):
        gpus, each = place.asked.gpus_per_node, place.asked.number("cpus-per-task")
        if not gpus or not each or "exclusive" in place.asked.options or place.groups is None:
            continue
        cpus = each * (place.asked.tasks_per_node or 1)
        shares = [group.cpus // group.gpus for group in place.groups if group.cpus and group.gpus]
        known = [group for group in place.groups if group.gpus != 0]
        if not shares or len(shares) < len(known) or gpus >= max(group.gpus or 0 for group in known):
            continue
        share = max(shares)
        if cpus > 1.5 * share * gpus:
            yield Hit(
                place.asked.line("cpus-per-task"),
                f"{cpus} CPUs for {gpus} of the node's GPUs; their share is {share * gpus}, the rest is other GPUs'",
                f"ask for {share * gpus} CPUs or fewer on each node",
            )


@rule("option-required", "error", "An option without which the site refuses every job.", needs_cluster=True)
def option_required(view: View) -> Iterator[Hit]:
    cluster = view.facts.cluster
    if cluster is None:
        return
    for name in cluster.dialect.required:
        if name not in view.asked.options:
            yield Hit(
                view.script.directives[0].line if view.script.directives else 1,
                f"{cluster.name} refuses jobs without --{name}",
                f"add #SBATCH --{name}=...",
            )


@rule(
    "login-shell-required",
    "warning",
    "`module` at a site that has it only in login shells.",
    needs_cluster=True,
)
def login_shell_required(view: View) -> Iterator[Hit]:
    cluster = view.facts.cluster
    if cluster is None or not cluster.dialect.login_shell or " -" in (view.script.shebang or ""):
        return
    for simple in view.simple:
        if simple.name in {"source", ".", "eval"}:
            return
        if simple.name in {"module", "ml"}:
            message = f"{cluster.name} has `module` only in login shells"
            yield Hit(simple.line, message, "start the script with #!/bin/bash -l")
            return


RULES = (
    unknown_partition, over_time, over_nodes, unknown_gpu_type, too_many_gpus, gpus_not_there, cpu_share,
    option_required, login_shell_required,
)  # fmt: skip
