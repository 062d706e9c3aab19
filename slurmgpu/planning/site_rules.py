"""A site's own rules of options: which it refuses, which every job must name, how accounts are called.

One place for all who ask: the planner, exact jobs, ``slurmgpu check``, submission, and what a twin says of itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from slurmgpu.models.cluster import Cluster, Partition
from slurmgpu.models.site import AccountRule
from slurmgpu.planning.request import About, Problem

__all__ = [
    "account_fits",
    "account_rule",
    "against_the_rules",
    "given_by_site",
    "looks_of_accounts",
    "missing_options",
    "refused_options",
    "wants_gpu_type",
]

_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_CPUS = ("cpus-per-task", "cpus-per-gpu")
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")


def given_by_site(cluster: Cluster) -> dict[str, str]:
    """sbatch's options for what the site gives by itself and refuses to be asked for, and why, as a clause behind its name."""
    dialect = cluster.dialect
    found: dict[str, str] = {}
    if dialect.memory == "none":
        found.update(dict.fromkeys(_MEMORY, "gives memory by itself"))
    if dialect.cpus == "none":
        found.update(dict.fromkeys(_CPUS, "gives CPUs with the GPUs and refuses a request"))
    return found


def refused_options(cluster: Cluster) -> dict[str, str]:
    """All options with which the site refuses a job; srun's own line may have some of them."""
    forbidden = {name: f"refuses jobs with --{name}" for name in cluster.dialect.forbidden}
    return {**given_by_site(cluster), **forbidden}


def missing_options(cluster: Cluster, given: Collection[str]) -> list[str]:
    """The options that every job there must have and that are not among those given; a type of GPU is none of them."""
    dialect = cluster.dialect
    never = {"gpu_type"} | ({"partition"} if dialect.partition == "never" else set())
    return [name for name in dialect.required if name not in never and name not in given]


def wants_gpu_type(cluster: Cluster) -> bool:
    """Whether every request for GPUs must name their type, or had better."""
    return "gpu_type" in (*cluster.dialect.required, *cluster.dialect.advised)


def account_rule(cluster: Cluster, partition: Partition | None) -> AccountRule | None:
    """How accounts are called that may be charged on a partition; None: any name will do."""
    return (partition.account if partition else None) or cluster.dialect.account


def account_fits(rule: AccountRule, account: str, gpu_types: Collection[str]) -> bool:
    """Whether an account looks as the site's do, and is not for another type of GPU."""
    own = {rule.suffix_by_gpu_type.get(gpu_type) for gpu_type in gpu_types} - {None}
    other_type = bool(own) and any(
        account.endswith(end) for end in rule.suffix_by_gpu_type.values() if end not in own
    )
    return not other_type and bool(rule.pattern and re.fullmatch(rule.pattern, account, re.IGNORECASE))


def looks_of_accounts(rule: AccountRule) -> str:
    """How accounts look, as the end of a sentence."""
    return f"such as {rule.example}" if rule.example else f"that match {rule.pattern}"


def against_the_rules(cluster: Cluster, options: Mapping[str, str | None]) -> Iterator[Problem]:
    """What of a script's options, by their long names, the site does not take, and what it misses."""
    subject = f"cluster {cluster.name!r}"
    for name, why in refused_options(cluster).items():
        if name in options:
            yield Problem(
                subject, why if f"--{name}" in why else f"{why}: no --{name} there", "refused", name
            )
    for name in missing_options(cluster, options):
        yield Problem(subject, f"refuses jobs without --{name}", "required", name)
    account = options.get("account") or ""
    rule = account_rule(cluster, cluster.partitions.get(options.get("partition") or ""))
    other = (
        next((end for end in rule.other_suffixes if account.lower().endswith(end)), None) if rule else None
    )
    if rule and other:
        own = f"{account[: -len(other)]}{rule.suffix or ''}"
        text = f"charges no account that ends in {other} for this partition: not {account!r}, but perhaps {own!r}"
        yield Problem(subject, text, "account")
    asked = [options[name] or "" for name in _GPUS if name in options]
    untyped = next((text for text in asked if re.fullmatch(r"(?:gpu:)?\d+", text)), None)
    if untyped is not None and wants_gpu_type(cluster) and "constraint" not in options:
        types = ", ".join(dict.fromkeys(known.gres or name for name, known in cluster.gpu_types.items()))
        refuses = "gpu_type" in cluster.dialect.required
        says = "wants the type in every request for GPUs" if refuses else "advises to name the type of GPU"
        without = "without it a job is refused, or gets no GPU" if refuses else "without it a job may get any"
        about: About = "required" if refuses else "advised"
        yield Problem(
            subject, f"{says} ({types or 'a100:1'}), and {untyped} has none: {without}", about, "gpu_type"
        )
