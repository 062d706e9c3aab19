"""What accounting knows: QOS with their limits, and the accounts of a user. Same fields from 20.11 to 26.05."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "ACCOUNT_FIELDS",
    "QOS_FIELDS",
    "USER_FIELDS",
    "account_command",
    "qos_command",
    "rows",
    "user_command",
]

# Free text comes last: it may hold the separator, which is not a choice of ours.
QOS_FIELDS = (
    "name", "preempt", "preemptmode", "flags", "usagefactor", "grptres", "grpjobs", "maxtres",
    "maxtrespernode", "maxtresmins", "maxwall", "maxtrespu", "maxjobspu", "maxtrespa", "maxjobspa", "mintres",
    "description",
)  # fmt: skip
USER_FIELDS = (
    "user", "defaultaccount", "account", "partition", "qos", "defaultqos", "maxjobs", "maxtres",
    "maxtrespernode", "maxwall", "grptres", "grpjobs",
)  # fmt: skip
ACCOUNT_FIELDS = ("account", "user", "parentname", "grptres", "grpjobs")


def qos_command() -> list[str]:
    """Return the command for all QOS."""
    return ["sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_FIELDS)}"]


def user_command(user: str, cluster: str) -> list[str]:
    """Return the command for a user's associations on one cluster; limits inherited from accounts are filled in."""
    return [
        *("sacctmgr", "-nP", "show", "user", user, "withassoc", "where", f"cluster={cluster}"),
        f"format={','.join(USER_FIELDS)}",
    ]


def account_command(accounts: Iterable[str], cluster: str) -> list[str]:
    """Return the command for the accounts' own limits: an empty user leaves out the rows of all their users."""
    return [
        *("sacctmgr", "-nP", "show", "associations", "where", f"cluster={cluster}", "user="),
        *(f"account={','.join(accounts)}", f"format={','.join(ACCOUNT_FIELDS)}"),
    ]


def rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Read rows of fields separated by `|`; lines with too few are banners and left out."""
    found = []
    for line in text.split("\n"):
        parts = line.split("|", len(fields) - 1)
        if len(parts) == len(fields):
            found.append(dict(zip(fields, parts, strict=True)))
    return found
