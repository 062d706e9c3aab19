"""Rules that know the cluster: what its profile says against what the script asks for.

Whether Slurm would start a component is judged by the planner's own rules (``planning.judging_options``); each rule here tells
of one part of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import NamedTuple

from slurmgpu.errors import nearest
from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.planning.request import About, Problem
from slurmgpu.scripts.rules.base import Asked, Hit, Rule, View, is_placeholder, rule


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
        return [kind for partition in self.partitions for kind in partition.kinds]


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


@rule("error", needs_cluster=True, judged_before=True)
def unknown_partition(view: View) -> Iterator[Hit]:
    """A partition that the cluster does not have."""
    cluster = _cluster(view)
    for asked in view.components if cluster else ():
        for name in _named(asked):
            assert cluster is not None
            if name not in cluster.partitions:
                near = nearest(name, cluster.partitions)
                known = ", ".join(sorted(cluster.partitions))
                fix = f"did you mean {near}?" if near else f"use one of: {known}"
                yield Hit(asked.line("partition"), f"{cluster.name} has no partition {name!r}", fix)


def _judged(view: View, about: About) -> Iterator[tuple[Asked, Problem]]:
    """What is wrong with a part of each component that could start nowhere else."""
    cluster = _cluster(view)
    if cluster is None:
        return
    from slurmgpu.planning.judging_options import judge_options  # only a described cluster pays for it

    for place in _places(view):
        options = {name: place.asked.value(name) for name in place.asked.options}
        for problem in judge_options(cluster, options):
            if problem.about == about:
                yield place.asked, problem


def _rule_about(name: str, about: About, options: str, says: str, fix: str) -> Rule:
    def find(view: View) -> Iterator[Hit]:
        for asked, problem in _judged(view, about):
            line = asked.line(*options.split())
            yield Hit(line, f"{problem}; such a job is refused, or waits for ever", fix)

    return Rule(name, "error", says, find, needs_cluster=True, judged_before=True)


# What each is called, of which part of a request it tells, and whose line it names: that of the first option given.
JUDGED = list(starmap(_rule_about, (
    ("over-time", "time", "time",
     "More time than is allowed.", "ask for less, and let the job continue from its checkpoint"),
    ("over-nodes", "nodes", "nodes ntasks", "More nodes than are allowed or there.", "ask for fewer nodes"),
    ("unknown-gpu-type", "gpu_type", "gres gpus-per-node gpus gpus-per-task",
     "A type of GPU that the partition does not have.", "ask for a type that is there"),
    ("gpus-not-there", "gpus", "gres gpus-per-node gpus gpus-per-task nodes partition",
     "More GPUs than a node has or a job may have, or none where one is required.",
     "ask for as many as are there, on more nodes, or in another partition"),
    ("over-cpus", "cpus", "cpus-per-task cpus-per-gpu ntasks-per-node exclusive",
     "More CPUs than a node has, or than its GPUs bring.", "ask for fewer CPUs, or more GPUs"),
    ("over-memory", "memory", "mem mem-per-cpu mem-per-gpu",
     "More memory than a node has or a job may have.", "ask for less memory"),
    ("unknown-feature", "constraint", "constraint",
     "A constraint that none of the nodes meets.", "leave it out, or name another"),
    ("too-much-gres", "gres", "gres", "More of a generic resource than a node has.", "ask for less of it"),
    ("qos-not-allowed", "qos", "qos partition",
     "A QOS that is not there, or not legal for the partition or account.", "name another QOS"),
    ("account-not-allowed", "account", "account partition",
     "An account that may not be charged there.", "name an account of yours"),
    ("partition-closed", "partition", "partition", "A partition that takes no jobs.", "use another partition"),
)))  # fmt: skip


@rule("warning", needs_cluster=True)
def cpu_share(view: View) -> Iterator[Hit]:
    """CPUs far from the GPUs' share of the node."""
    for place in _places(view):
        gpus, each = place.asked.gpus_per_node, place.asked.number("cpus-per-task")
        if not gpus or not each or "exclusive" in place.asked.options or place.groups is None:
            continue
        cpus = each * (place.asked.tasks_per_node or 1)
        known = [group for group in place.groups if group.gpu_count != 0]
        shares = [
            group.cpus_per_gpu or group.cpus // group.gpu_count
            for group in known
            if group.cpus and group.gpu_count
        ]
        if not shares or len(shares) < len(known) or gpus >= max(group.gpu_count or 0 for group in known):
            continue
        share = max(shares)
        if cpus > 1.5 * share * gpus:
            yield Hit(
                place.asked.line("cpus-per-task"),
                f"{cpus} CPUs for {gpus} of the node's GPUs; their share is {share * gpus}, the rest is other GPUs'",
                f"ask for {share * gpus} CPUs or fewer on each node",
            )


@rule("error", needs_cluster=True)
def option_required(view: View) -> Iterator[Hit]:
    """An option without which the site refuses every job."""
    cluster = view.facts.cluster
    if cluster is None:
        return
    for name in cluster.dialect.required:
        if name == "gpu_type" or (name == "partition" and cluster.dialect.partition == "never"):
            continue
        if name not in view.asked.options:
            yield Hit(
                view.script.directives[0].line if view.script.directives else 1,
                f"{cluster.name} refuses jobs without --{name}",
                f"add #SBATCH --{name}=...",
            )


@rule("warning", needs_cluster=True)
def login_shell_required(view: View) -> Iterator[Hit]:
    """`module` at a site that has it only in login shells."""
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
