"""The account and QOS of a job, and a site's own rules: options that it refuses, and options that every job must name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, Partition, QosRule
from slurmgpu.models.resources import Resources
from slurmgpu.models.site import AccountRule
from slurmgpu.planning.request import About, Problem
from slurmgpu.planning.verdict import effective_qos

__all__ = [
    "Chosen",
    "account_fits",
    "account_of",
    "account_rule",
    "against_the_rules",
    "given_by_site",
    "looks_of_accounts",
    "missing_options",
    "qos_candidates",
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
    """Return all options with which the site refuses a job; srun's own line may have some of them."""
    forbidden = {name: f"refuses jobs with --{name}" for name in cluster.dialect.forbidden}
    return {**given_by_site(cluster), **forbidden}


def missing_options(cluster: Cluster, given: Collection[str]) -> list[str]:
    """Return the options that every job there must have and that are not among those given; a type of GPU is none of them."""
    dialect = cluster.dialect
    never = {"gpu_type"} | ({"partition"} if dialect.partition == "never" else set())
    return [name for name in dialect.required if name not in never and name not in given]


def wants_gpu_type(cluster: Cluster) -> bool:
    """Return True if every request for GPUs must name their type, or had better."""
    return "gpu_type" in (*cluster.dialect.required, *cluster.dialect.advised)


def account_rule(cluster: Cluster, partition: Partition | None) -> AccountRule | None:
    """Return the form of accounts that may be charged on a partition; None: any name is taken."""
    return (partition.account if partition else None) or cluster.dialect.account


def account_fits(rule: AccountRule, account: str, gpu_types: Collection[str]) -> bool:
    """Return True if an account looks as the site's do, and is not for another type of GPU."""
    own = {rule.suffix_by_gpu_type.get(gpu_type) for gpu_type in gpu_types} - {None}
    other_type = bool(own) and any(
        account.endswith(end) for end in rule.suffix_by_gpu_type.values() if end not in own
    )
    return not other_type and bool(rule.pattern and re.fullmatch(rule.pattern, account, re.IGNORECASE))


def looks_of_accounts(rule: AccountRule) -> str:
    """Return the form of accounts, as the end of a sentence."""
    return f"such as {rule.example}" if rule.example else f"that match {rule.pattern}"


def against_the_rules(cluster: Cluster, options: Mapping[str, str | None]) -> Iterator[Problem]:
    """Yield what of a script's options, by their long names, the site does not take, and what it misses."""
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


class Chosen(NamedTuple):
    """A value that is asked for (None: none is), and why."""

    value: str | None
    why: str
    asked: bool = False
    """True if the job, or the settings for it, name it."""
    ending: str = ""
    """Why it does not end as it was written."""
    instead: str | None = None
    """The account that was asked for, which is for other partitions or types of GPU."""


def account_of(
    cluster: Cluster, resources: Resources, partition: Partition | None, gpu_types: frozenset[str]
) -> Chosen:
    """Return the account as the site writes it; PlanError when it is none that could exist there."""
    rule = account_rule(cluster, partition)
    chosen = Chosen(resources.account, "as asked", asked=True)
    names = sorted({row.account for row in cluster.associations})
    if chosen.value is None and "account" in cluster.dialect.required:
        if cluster.default_account:
            chosen = Chosen(cluster.default_account, "your default account")
        elif len(names) == 1:
            chosen = Chosen(names[0], "your only account")
    if rule is None or chosen.value is None or chosen.value in names:
        return chosen
    if account_fits(rule, chosen.value, gpu_types):
        return chosen
    return _by_rule(cluster, chosen, rule, gpu_types)


def _by_rule(cluster: Cluster, chosen: Chosen, rule: AccountRule, gpu_types: frozenset[str]) -> Chosen:
    account = chosen.value or ""
    suffixes = rule.suffix_by_gpu_type
    own = {suffixes.get(gpu_type) for gpu_type in gpu_types}
    by_type = next(iter(own)) if len(own) == 1 else None
    suffix = by_type or rule.suffix
    if suffixes and not suffix and not account.endswith(tuple(suffixes.values())):
        raise PlanError(
            f"resources.account: {account!r}: accounts on {cluster.name!r} end in the type of GPU "
            f"({', '.join(f'{name}: {end}' for name, end in suffixes.items())}), and none is asked for",
            hint=f"name the type (gpu_type: {next(iter(suffixes))}), or the whole account",
        )
    if suffix and not account.endswith(suffix):
        others = (*suffixes.values(), *rule.other_suffixes)
        wrong = next((end for end in others if account.endswith(end)), "")
        account = account.removesuffix(wrong) + suffix
        reason = f"for jobs on {', '.join(sorted(gpu_types))}" if by_type else "here"
        ending = f", with the {suffix} that accounts end in {reason}"
        chosen = chosen._replace(value=account, ending=ending, instead=chosen.value if wrong else None)
    if rule.pattern and not re.fullmatch(rule.pattern, account, re.IGNORECASE):
        raise PlanError(
            f"resources.account: {account!r} is not an account of {cluster.name!r}, which has names "
            f"{looks_of_accounts(rule)}",
            hint="ask the site which accounts you have: sacctmgr -P show associations user=$USER format=account",
        )
    return chosen


def qos_candidates(cluster: Cluster, resources: Resources, partition: Partition | None) -> list[Chosen]:
    """Return the QOS to try, the best first: the one asked for, or the site's, or any where one must be named."""
    if resources.qos is not None:
        return [Chosen(resources.qos, "as asked", asked=True)]
    if partition is not None and partition.default_qos is not None:
        return [Chosen(partition.default_qos, "the partition's usual one")]
    usual = effective_qos(cluster, cluster.dialect.qos, resources.account, None)
    if partition is not None and partition.qos and usual is not None and usual not in partition.qos:
        allowed = [
            name for name in partition.qos if name not in cluster.qos or not _by_name(cluster.qos[name])
        ]
        return [Chosen(name, f"{usual!r} is not legal in the partition") for name in allowed] or [
            Chosen(None, "")
        ]
    if cluster.dialect.qos is not None:
        found = [Chosen(cluster.dialect.qos, "the site's usual one")]
    elif "qos" not in cluster.dialect.required:
        return [Chosen(None, "")]
    else:
        found = []
    if "qos" in cluster.dialect.required or cluster.dialect.qos in cluster.qos:
        only = partition.qos if partition is not None else ()
        found += [
            Chosen(name, rule.description or "a QOS that takes such jobs")
            for name, rule in cluster.qos.items()
            if not _by_name(rule) and (not only or name in only)
        ]
        found = found or [Chosen(name, "the partition's only QOS") for name in only[:1]]
    unique = {chosen.value: chosen for chosen in reversed(found)}
    return list(reversed(unique.values())) or [Chosen(None, "")]


def _by_name(rule: QosRule) -> bool:
    return rule.by_name or rule.preemptible
