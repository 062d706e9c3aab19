"""Rules that know the cluster: what its profile says against what the script asks for.

Whether Slurm would start a component is judged by the planner's own rules (``planning.judging_options``); each rule here tells
of one part of a request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import starmap
from typing import NamedTuple

from slurmgpu.errors import nearest
from slurmgpu.models.cluster import Cluster, NodeGroup, Partition
from slurmgpu.planning.request import About, Problem
from slurmgpu.script.rules.base import Asked, Hit, Rule, Severity, View, is_placeholder, rule


class _Place(NamedTuple):
    """Partitions that a component names (or gets), as the profile describes them."""

    asked: Asked
    partitions: list[Partition]

    @property
    def groups(self) -> list[NodeGroup] | None:
        """The kinds of node; None where a partition's are not described."""
        if not all(partition.nodes for partition in self.partitions):
            return None
        return [kind for partition in self.partitions for kind in partition.kinds]


def _components(view: View) -> Iterator[tuple[Cluster, Asked, dict[str, str | None]]]:
    """Yield each component with its options, where the cluster is described."""
    cluster = view.facts.cluster
    if cluster is None or not cluster.known:
        return
    from slurmgpu.planning.judging_options import handed_down

    components = handed_down(
        [{name: asked.value(name) for name in asked.options} for asked in view.components]
    )
    for asked, options in zip(view.components, components, strict=True):
        yield cluster, asked, dict(options)


def _places(view: View) -> Iterator[_Place]:
    """Yield the components whose partitions are all described."""
    from slurmgpu.planning.judging_options import places_of

    for cluster, asked, options in _components(view):
        names = places_of(cluster, options)
        if names:
            yield _Place(asked, [cluster.partitions[name] for name in names])


@rule("error", needs_cluster=True, judged_before=True)
def unknown_partition(view: View) -> Iterator[Hit]:
    """A partition that the cluster does not have, or that its profile does not describe."""
    yield from _not_described(view, "partition")


def _not_described(view: View, about: About) -> Iterator[Hit]:
    """Yield an error where Slurm itself was asked which there are, else a hint."""
    from slurmgpu.planning.judging_options import not_described

    words: dict[About, tuple[str, str]] = {
        "partition": ("partition", "partition"),
        "qos": ("QOS", "qos"),
        "gpu_type": ("type of GPU", "gres gpus-per-node gpus gpus-per-task"),
    }
    for cluster, asked, options in _components(view):
        names_of: dict[About, list[str]] = {
            "partition": list(cluster.partitions),
            "qos": list(cluster.qos),
            "gpu_type": list(cluster.gpu_types),
        }
        known = names_of[about]
        for problem in not_described(cluster, options):
            name, (word, names) = problem.option or "", words[about]
            if problem.about != about or is_placeholder(name):
                continue
            near, line = nearest(name, known), asked.line(*names.split())
            listed = ", ".join(sorted(known))
            if cluster.complete:
                fix = f"did you mean {near}?" if near else f"use one of: {listed}"
                yield Hit(line, f"{cluster.name} {problem.text}", fix)
                continue
            yield Hit(
                line,
                f"the profile {cluster.name} describes no {word} {name!r}, so nothing is checked of it"
                + (f"; it has {listed}" if listed else ""),
                f"leave it, if your site has it{f'; or did you mean {near}?' if near else ''}",
                "hint",
            )


class _Judged(NamedTuple):
    """A fault of a part of a component that could start nowhere else."""

    asked: Asked
    problem: Problem
    guess: str = ""
    """Why the profile guessed the figure that it is over, which may be otherwise; empty: it is a fact."""


def _judged(view: View, about: About) -> Iterator[_Judged]:
    from slurmgpu.planning.judging_options import (
        judge_script,
        judge_without_guesses,
    )  # a described cluster pays for it

    for cluster, asked, options in _components(view):
        found = [problem for problem in judge_script(cluster, options) if problem.about == about]
        sure = judge_without_guesses(cluster, options) if found else None
        for problem in found:
            yield _Judged(asked, problem, "" if sure is None or problem in sure[0] else sure[1])


def _rule_about(name: str, about: About, options: str, says: str, fix: str) -> Rule:
    def find(view: View) -> Iterator[Hit]:
        if about in {"qos", "gpu_type"}:
            yield from _not_described(view, about)
        for asked, problem, guess in _judged(view, about):
            if about == "qos" and problem.subject.startswith("cluster "):
                continue  # told above
            line = asked.line(*options.split())
            if guess:
                yield Hit(line, f"{problem}; that is a guess of the profile ({guess})", fix, "warning")
            else:
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
    ("licence-not-there", "licenses", "licenses",
     "A licence that the cluster does not have, or not as many.", "ask for one that is there"),
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


def _said(view: View, problem: Problem) -> str:
    return f"{view.facts.cluster.name if view.facts.cluster else ''} {problem.text}"


@rule("error", needs_cluster=True)
def option_refused(view: View) -> Iterator[Hit]:
    """An option with which the site refuses every job."""
    for asked, problem, _ in _judged(view, "refused"):
        yield Hit(
            asked.line(problem.option or ""),
            _said(view, problem),
            f"remove --{problem.option}; what belongs to srun goes on its own line",
        )


@rule("error", needs_cluster=True)
def option_required(view: View) -> Iterator[Hit]:
    """An option without which the site refuses every job, or gives it no GPU."""
    first = view.script.directives[0].line if view.script.directives else 1
    severities: tuple[tuple[About, Severity | None], ...] = (("required", None), ("advised", "hint"))
    for about, severity in severities:
        for asked, problem, _ in _judged(view, about):
            if problem.option == "gpu_type":
                fix, line = "write the type: --gres=gpu:TYPE:COUNT", asked.line(*asked.gpu_options)
            else:
                fix, line = f"add #SBATCH --{problem.option}=...", first
            # An account may also come from the environment (SBATCH_ACCOUNT), or be the user's default one.
            elsewhere = problem.option == "account" and not view.facts.submitted
            yield Hit(line, _said(view, problem), fix, "hint" if elsewhere else severity)


@rule("hint", needs_cluster=True)
def account_name(view: View) -> Iterator[Hit]:
    """An account that does not look like the site's, or pays for another type of GPU."""
    from slurmgpu.planning.accounts import account_fits, account_rule, looks_of_accounts

    for cluster, asked, options in _components(view):
        account = options.get("account") or ""
        if not re.fullmatch(r"[\w.@+-]+", account) or is_placeholder(account):
            continue
        names = (options.get("partition") or "").split(",")
        places = [cluster.partitions[name] for name in names if name in cluster.partitions]
        rules = [account_rule(cluster, one) for one in places] or [account_rule(cluster, None)]
        features = set(re.split(r"[&|()\[\]]", options.get("constraint") or ""))
        types = asked.gpu_types | {
            name
            for name, known in cluster.gpu_types.items()
            if known.constraint and known.constraint in features
        }
        faulty = [
            one for one in rules if one is not None and one.pattern and not account_fits(one, account, types)
        ]
        if not faulty or len(faulty) < len(rules) or account in {row.account for row in cluster.associations}:
            continue
        ends = {faulty[0].suffix_by_gpu_type.get(name) for name in types} - {None}
        yield Hit(
            asked.line("account"),
            f"accounts of {cluster.name} have names {looks_of_accounts(faulty[0])}"
            + (f", and end in {', '.join(sorted(map(str, ends)))} for these GPUs" if ends else "")
            + f"; {account!r} has not",
            "`sacctmgr -P show associations user=$USER format=account` lists yours",
            "warning" if ends else None,
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
