"""What an account has left, by sshare: limits of TRES-minutes less what was used and what runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmgpu.slurm.commands import Commands
from slurmgpu.slurm.text import whole

__all__ = ["Balance", "balance_command", "parse_balance", "read_balance"]

FIELDS = ("Account", "User", "GrpTRESMins", "GrpTRESRaw", "TRESRunMins")


@dataclass(frozen=True)
class Balance:
    """An account's budget; usage decays over time where the site has PriorityDecayHalfLife."""

    account: str
    granted: dict[str, int] = field(default_factory=dict)
    """TRES -> minutes that may be used in all (GrpTRESMins); empty: no limit is set."""
    left: dict[str, int] = field(default_factory=dict)
    """TRES -> minutes left: granted, less used, less what running jobs may still use."""


def balance_command(account: str) -> list[str]:
    """Return the sshare command for one account."""
    return ["sshare", "-n", "-P", "-A", account, "-o", ",".join(FIELDS)]


def read_balance(slurm: Commands, account: str) -> tuple[Balance | None, str]:
    """Ask for an account's budget; None with the reason where Slurm does not say."""
    answer = slurm.ask(balance_command(account))
    if not answer.ok:
        return None, f"sshare said: {answer.text}"
    balance = parse_balance(answer.stdout, account)
    return balance, "" if balance else f"sshare shows no account {account!r}"


def parse_balance(text: str, account: str) -> Balance | None:
    """Read what `command` prints: the account's own row is the one without a user."""
    for line in text.split("\n"):
        parts = line.split("|")
        if len(parts) != len(FIELDS) or parts[0].strip() != account or parts[1].strip():
            continue
        granted, used, running = (_minutes(part) for part in parts[2:])
        left = {name: total - used.get(name, 0) - running.get(name, 0) for name, total in granted.items()}
        return Balance(account, granted, left)
    return None


def _minutes(text: str) -> dict[str, int]:
    """`cpu=100,gres/gpu=6000` as numbers."""
    pairs = (entry.rpartition("=") for entry in text.split(","))
    return {name: number for name, _, value in pairs if name and (number := whole(value)) is not None}
