"""Whether the job's partitions take its account and its QOS, and which of the user's they would take.

Slurm looks at this when a job is submitted, and later only now and then: rules that have changed since leave a job with the
reason that it had (24.11, 26.05), so that a job that waits for its turn is held against them, too.
"""

from __future__ import annotations

from slurmgpu.models.cluster import Partition
from slurmgpu.monitoring.why.answer import Fact, Mend
from slurmgpu.monitoring.why.case import Case, Told
from slurmgpu.monitoring.why.words import listed
from slurmgpu.printable import printable

__all__ = ["account", "barred", "other_qos", "qos"]


def account(case: Case) -> Told:
    """AccountNotAllowed, InvalidAccount: what the partitions take, and what the user has of it."""
    yield from _not_taken(case, "account")
    found = case.present.associations(case.job.user or "")
    mine = sorted({one.account for one in found[0]}) if found else []
    others = [name for name in mine if name != case.job.account and _taken(case, "account", name)]
    if others:
        yield Mend(f"charge another account of yours: {listed(others)}", case.change("Account", others[0]))
    else:
        yield Mend("ask the site's support for an account that is valid there")


def qos(case: Case) -> Told:
    """QOSNotAllowed, InvalidQOS: what the partitions take, and what the account may use."""
    yield from _not_taken(case, "qos")
    others = other_qos(case)
    if others:
        yield Mend(
            f"another QOS that your account may use there: {listed(others)}", case.change("QOS", others[0])
        )
    else:
        yield Mend("ask the site's support for a QOS that is valid there")


def other_qos(case: Case) -> list[str]:
    """Return the further QOS that the job's account may use in its partitions."""
    found = case.present.associations(case.job.user or "")
    mine = [one for one in (found[0] if found else ()) if one.account == case.job.account]
    legal = sorted({name for one in mine for name in one.qos})
    return [name for name in legal if name != case.job.qos and _taken(case, "qos", name)]


def barred(case: Case) -> Told:
    """What ``account`` and ``qos`` tell, where none of its partitions takes the job; nothing where one does."""
    for what, subject in (("account", account), ("qos", qos)):
        name = case.job.account if what == "account" else case.job.qos
        if name and case.partitions and not _taken(case, what, name):
            case.never = True
            word = "account" if what == "account" else "QOS"
            case.sentence = f"none of its partitions takes {word} {printable(name)} (any more)"
            yield from subject(case)


def _takes(rules: Partition, what: str, name: str) -> bool:
    return rules.takes_account(name) if what == "account" else rules.takes_qos(name)


def _taken(case: Case, what: str, name: str) -> bool:
    """Whether one of its partitions takes a name."""
    return any(_takes(one.rules, what, name) for one in case.partitions)


def _not_taken(case: Case, what: str) -> Told:
    name = (case.job.account if what == "account" else case.job.qos) or "none"
    word = "account" if what == "account" else "QOS"
    for one in case.partitions:
        if _takes(one.rules, what, name):
            continue
        rules, partition = one.rules, one.name
        allowed, denied = (
            (rules.accounts, rules.denied_accounts) if what == "account" else (rules.qos, rules.denied_qos)
        )
        rule = f"takes {word} {listed(allowed)}, not" if allowed else f"does not take {word}"
        figures = {"partition": partition, "allowed": list(allowed), "denied": list(denied), what: name}
        yield Fact(what, f"partition {partition} {rule} {printable(name)}", figures)
