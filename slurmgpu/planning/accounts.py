"""Which account and QOS a job gets, in the site's way of naming them."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster, Partition
from slurmgpu.models.limits import QosRule
from slurmgpu.models.resources import Resources
from slurmgpu.models.site import AccountRule
from slurmgpu.planning.site_rules import account_fits, account_rule, looks_of_accounts
from slurmgpu.planning.verdict import effective_qos

__all__ = ["Chosen", "account_of", "qos_candidates"]


class Chosen(NamedTuple):
    """A value that is asked for (None: none is), and why."""

    value: str | None
    why: str
    asked: bool = False
    """Whether the job, or the settings for it, name it."""
    ending: str = ""
    """Why it does not end as it was written."""
    instead: str | None = None
    """The account that was asked for, which is for other partitions or types of GPU."""


def account_of(
    cluster: Cluster, resources: Resources, partition: Partition | None, gpu_types: frozenset[str]
) -> Chosen:
    """The account as the site writes it; PlanError when it is none that could exist there."""
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
    """The QOS to try, the best first: the one asked for, or the site's, or any where one must be named."""
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
